import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { post } from "../live/api";
import { Icon } from "../parts/Icon";
import { pressedUnless } from "../parts/pressedUnless";
import { navigate } from "../router";

const LINK_SPENT =
  "This sign-in link was used before or has expired. `rubato login` makes a new one; or paste a token.";

/** Asks for a token and trades it for a cookie that scripts cannot read. */
export function SignInView({ onDone }: { onDone: () => void }) {
  const [token, setToken] = useState("");
  const isLinkSpent = new URLSearchParams(location.search).get("link") === "spent";
  const [error, setError] = useState<string | null>(isLinkSpent ? LINK_SPENT : null);
  const [isBusy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await post("/session", { token: token.trim() });
      if (location.pathname === "/sign-in") navigate("/");
      onDone();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
      field.current?.focus();
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form class="card" onSubmit={(event) => void submit(event)}>
        <div class="brand">
          <Icon name="mark" />
          Rubato
        </div>
        <h1>Sign in</h1>
        <p class="soft">
          Paste a token. On the machine that runs the service, <code>rubato login</code> prints a link that
          opens this page signed in, and <code>~/.rubato/token</code> holds the administrator's token.
        </p>
        <label for="token">Token</label>
        <input
          ref={field}
          id="token"
          type="password"
          autocomplete="current-password"
          placeholder="rbt_…"
          spellcheck={false}
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
          aria-invalid={error !== null}
          aria-describedby="token-error"
        />
        <p id="token-error" class="error" role="alert">
          {error}
        </p>
        <button type="submit" class="button primary" {...pressedUnless(isBusy || token.trim() === "")}>
          {isBusy ? "Signing in…" : "Sign in"}
        </button>
      </form>
    </main>
  );
}
