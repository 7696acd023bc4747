import { useState } from "preact/hooks";
import { getAll, post, remove } from "../live/api";
import { useResource } from "../live/hooks";
import { Confirm } from "../parts/Confirm";
import { Copy } from "../parts/Copy";
import { FormDialog, ToldOnce } from "../parts/FormDialog";
import { Unread } from "../parts/Unread";
import { useAct } from "../parts/useAct";
import { formatAgo, formatTime } from "../text/format";
import { isGood } from "../text/token";
import type { Me, Token, User } from "../wire";

const DAY_S = 86_400;
const LIFETIMES: [string, number | null][] = [
  ["90 days", 90 * DAY_S],
  ["7 days", 7 * DAY_S],
  ["a year", 365 * DAY_S],
  ["for ever", null],
];

/** What programs sign in with: made, shown once, revoked. */
export function TokensCard({ me, now }: { me: Me; now: number }) {
  const [edition, setEdition] = useState(0);
  const tokens = useResource<Token[]>("/tokens?limit=200", edition, getAll);
  const reload = () => setEdition((before) => before + 1);
  const create = async (filled: FormData) => {
    const lifetime = LIFETIMES[Number(filled.get("lifetime"))]?.[1] ?? null;
    const token = await post<Token & { token: string }>("/tokens", {
      name: filled.get("name"),
      user: filled.get("user") || null,
      role: filled.get("role") ?? "user",
      cluster: (filled.get("role") === "cluster" && filled.get("cluster")) || null,
      expires_in: lifetime,
    });
    reload();
    return (
      <ToldOnce secret={token.token}>
        Copy it now: it is not shown again. <Copy text={token.token} label="Copy the token" />
      </ToldOnce>
    );
  };
  const living = tokens.value?.filter((token) => isGood(token, now));
  return (
    <section class="card" aria-labelledby="tokens-title">
      <div class="card-head">
        <h2 id="tokens-title">Tokens</h2>
        <FormDialog label="New token" title="New token" confirm="Create" onSend={create} isSmall>
          <label class="field">
            What it is for
            <input name="name" required maxLength={63} autocomplete="off" />
          </label>
          <label class="field">
            How long it is good
            <select name="lifetime">
              {LIFETIMES.map(([words], index) => (
                <option key={words} value={index}>
                  {words}
                </option>
              ))}
            </select>
          </label>
          {me.role === "admin" && <ForWhom />}
        </FormDialog>
      </div>
      {tokens.error && !tokens.value && <Unread error={tokens.error} onRetry={tokens.reload} />}
      {living && (
        <div class="scroll-x">
          <table class="plain">
            <caption class="hidden">Tokens that are good</caption>
            <thead>
              <tr>
                <th scope="col">For</th>
                <th scope="col">Whose</th>
                <th scope="col">Made</th>
                <th scope="col">Ends</th>
                <th scope="col">Actions</th>
              </tr>
            </thead>
            <tbody>
              {living.map((token) => (
                <tr key={token.id} data-token={token.name}>
                  <th scope="row">{token.name}</th>
                  <td data-label="Whose">
                    {token.user ?? "service account"}{" "}
                    {token.role !== "user" && <span class="soft">{token.role}</span>} {token.cluster}
                  </td>
                  <td title={token.created_at} data-label="Made">
                    {formatAgo(token.created_at, now)}
                  </td>
                  <td data-label="Ends">
                    {token.expires_at ? formatTime(token.expires_at, now) : <span class="soft">never</span>}
                  </td>
                  <td class="row-wide">
                    <Revoke token={token} onDone={reload} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** Administrators make tokens for others, too. */
function ForWhom() {
  const users = useResource<User[]>("/users?limit=200", 0, getAll);
  return (
    <>
      <label class="field">
        Who uses it
        <select name="role">
          <option value="user">a person, or a program that acts as one</option>
          <option value="cluster">the agent of a cluster</option>
          <option value="scraper">a reader of metrics, such as Prometheus</option>
        </select>
      </label>
      <label class="field">
        Which cluster, where an agent's
        <input name="cluster" maxLength={63} autocomplete="off" placeholder="any" />
      </label>
      <label class="field">
        Whose it is, where a person's
        <select name="user">
          <option value="">yours</option>
          {users.value?.map((user) => (
            <option key={user.name} value={user.name}>
              {user.name}
            </option>
          ))}
        </select>
      </label>
    </>
  );
}

function Revoke({ token, onDone }: { token: Token; onDone: () => void }) {
  const { isBusy, act } = useAct();
  return (
    <Confirm
      label="Revoke"
      title={`Revoke ${token.name}?`}
      confirm="Revoke"
      isDanger
      isSmall
      isHeld={isBusy}
      onConfirm={() =>
        void act(
          () => remove(`/tokens/${encodeURIComponent(token.id)}`),
          `${token.name} is worthless now`,
          onDone,
        )
      }
    >
      <p>What uses it is refused from now on, and pages that were signed in with it are signed out.</p>
    </Confirm>
  );
}
