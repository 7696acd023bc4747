import { useRef, useState } from "preact/hooks";
import { getAll, post } from "../live/api";
import { useResource } from "../live/hooks";
import { Copy } from "../parts/Copy";
import { FormDialog, ToldOnce } from "../parts/FormDialog";
import { Unread } from "../parts/Unread";
import { isHomes } from "../text/token";
import type { Me, Token, User } from "../wire";

const DAY_S = 86_400;
const LIFETIMES: [string, number | null][] = [
  ["90 days", 90 * DAY_S],
  ["7 days", 7 * DAY_S],
  ["a year", 365 * DAY_S],
  ["for ever", null],
];
/** In place of a user's name, which holds no blanks. */
const NOBODY_YET = "a new user";

/** A button, and behind it a token that is made and shown once. */
export function NewToken({ me, onMade }: { me: Me; onMade: () => void }) {
  /** The user that was made for a token that was then refused: not made again. */
  const made = useRef<string | null>(null);
  const ownerOf = async (filled: FormData) => {
    if (filled.get("user") !== NOBODY_YET) return filled.get("user") || null;
    const name = String(filled.get("newcomer")).trim();
    if (made.current !== name) await post<User>("/users", { name });
    made.current = name;
    return name;
  };
  const create = async (filled: FormData) => {
    const token = await post<Token & { token: string }>("/tokens", {
      name: filled.get("name"),
      user: await ownerOf(filled),
      role: filled.get("role") ?? "user",
      cluster: filled.get("cluster") || null,
      expires_in: LIFETIMES[Number(filled.get("lifetime"))]?.[1] ?? null,
    });
    const isNewcomers = made.current !== null && token.user === made.current;
    made.current = null;
    onMade();
    return (
      <>
        <ToldOnce secret={token.token}>
          Copy it now: it is not shown again. <Copy text={token.token} label="Copy the token" />
        </ToldOnce>
        {isNewcomers && (
          <p class="soft">
            {token.user} is new and has no role in a project yet:{" "}
            <code>rubato project grant PROJECT {token.user} editor</code> gives one.
          </p>
        )}
      </>
    );
  };
  return (
    <FormDialog label="New token" title="New token" confirm="Create" onSend={create} isSmall>
      <label class="field">
        What it is for
        <input name="name" required maxLength={63} autocomplete="off" />
      </label>
      <label class="field">
        How long it is valid
        <select name="lifetime">
          {LIFETIMES.map(([words], index) => (
            <option key={words} value={index}>
              {words}
            </option>
          ))}
        </select>
      </label>
      {me.role === "admin" && <ForWhom me={me} />}
    </FormDialog>
  );
}

/** Administrators make tokens for others, too. */
function ForWhom({ me }: { me: Me }) {
  const [role, setRole] = useState("user");
  return (
    <>
      <label class="field">
        Who uses it
        <select name="role" value={role} onChange={(event) => setRole(event.currentTarget.value)}>
          <option value="user">a person, or a program that acts as one</option>
          <option value="cluster">the agent of a cluster</option>
          <option value="scraper">a reader of metrics, such as Prometheus</option>
        </select>
      </label>
      {role === "cluster" && (
        <label class="field">
          Cluster of the agent
          <input name="cluster" maxLength={63} autocomplete="off" placeholder="any" />
        </label>
      )}
      {role === "user" && <Owner me={me} />}
    </>
  );
}

/** Whose the token is to be: where one is signed in by the home's own, it must be somebody else's. */
function Owner({ me }: { me: Me }) {
  const users = useResource<User[]>("/users?limit=200", 0, getAll);
  const [chosen, setChosen] = useState<string | null>(null);
  if (users.error && !users.value) return <Unread error={users.error} onRetry={users.reload} />;
  const others = (users.value ?? []).filter((user) => user.disabled_at === null && user.name !== me.user);
  const first = isHomes(me) && users.value && others.length === 0 ? NOBODY_YET : "";
  const owner = chosen ?? first;
  return (
    <>
      <label class="field">
        Whose it is
        <select
          name="user"
          required={isHomes(me)}
          value={owner}
          onChange={(event) => setChosen(event.currentTarget.value)}
        >
          <option value="">{isHomes(me) ? "choose a user" : "yours"}</option>
          {others.map((user) => (
            <option key={user.name} value={user.name}>
              {user.name}
            </option>
          ))}
          <option value={NOBODY_YET}>a new user…</option>
        </select>
        {isHomes(me) && (
          <small class="soft">You are signed in by the service's own token, which belongs to no user.</small>
        )}
      </label>
      {owner === NOBODY_YET && (
        <label class="field">
          Name of the new user
          <input name="newcomer" required maxLength={63} autocomplete="off" />
        </label>
      )}
    </>
  );
}
