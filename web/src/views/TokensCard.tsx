import { useState } from "preact/hooks";
import { getAll, remove } from "../live/api";
import { useResource } from "../live/hooks";
import { Confirm } from "../parts/Confirm";
import { Unread } from "../parts/Unread";
import { useAct } from "../parts/useAct";
import { formatAgo, formatTime } from "../text/format";
import { costOf, isGood } from "../text/token";
import type { Me, Token } from "../wire";
import { NewToken } from "./NewToken";

/** What programs sign in with: made, shown once, revoked. */
export function TokensCard({ me, now }: { me: Me; now: number }) {
  const [edition, setEdition] = useState(0);
  const tokens = useResource<Token[]>("/tokens?limit=200", edition, getAll);
  const reload = () => setEdition((before) => before + 1);
  const living = tokens.value?.filter((token) => isGood(token, now));
  return (
    <section class="card" aria-labelledby="tokens-title">
      <div class="card-head">
        <h2 id="tokens-title">Tokens</h2>
        <NewToken me={me} onMade={reload} />
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
                    <Revoke token={token} me={me} onDone={reload} />
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

function Revoke({ token, me, onDone }: { token: Token; me: Me; onDone: () => void }) {
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
      <p>{costOf(token, me).join(" ")}</p>
    </Confirm>
  );
}
