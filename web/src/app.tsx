import { useCallback, useEffect, useState } from "preact/hooks";
import { ApiError, get, onUnauthenticated, remove } from "./live/api";
import { ErrorBoundary } from "./parts/ErrorBoundary";
import { Heading } from "./parts/Heading";
import { Icon } from "./parts/Icon";
import { ToastHost, useSay } from "./parts/Toasts";
import { WhoAmI } from "./parts/useMe";
import { pageOf, type Route, useRoute } from "./router";
import { type Theme, useTheme } from "./theme";
import { ClusterView } from "./views/ClusterView";
import { CompareView } from "./views/CompareView";
import { JobsView } from "./views/JobsView";
import { JobView } from "./views/JobView";
import { SettingsView } from "./views/SettingsView";
import { SignInView } from "./views/SignInView";
import type { Me } from "./wire";

type Session =
  | { phase: "asking" }
  | { phase: "in"; me: Me }
  | { phase: "out" }
  | { phase: "error"; message: string };

/** The whole page: who is it, and what is to be shown. */
export function App() {
  const theme = useTheme();
  const route = useRoute();
  const [session, setSession] = useState<Session>({ phase: "asking" });
  const ask = useCallback(() => {
    get<Me>("/me").then(
      (me) => setSession({ phase: "in", me }),
      (error: unknown) => {
        if (error instanceof ApiError && error.isUnauthenticated) setSession({ phase: "out" });
        else setSession({ phase: "error", message: error instanceof Error ? error.message : String(error) });
      },
    );
  }, []);
  useEffect(() => {
    onUnauthenticated(() => setSession({ phase: "out" }));
    ask();
  }, [ask]);

  if (session.phase === "asking") return <div class="splash" role="status" aria-label="Loading" />;
  if (session.phase === "out") return <SignInView onDone={ask} />;
  if (session.phase === "error") return <Unreachable message={session.message} onRetry={ask} />;
  return (
    <ToastHost>
      <SkipLink />
      <TopBar theme={theme} me={session.me} route={route} onSignedOut={() => setSession({ phase: "out" })} />
      <div id="main" tabIndex={-1}>
        <ErrorBoundary key={pageOf(route)}>
          <WhoAmI.Provider value={session.me}>
            <Main theme={theme} me={session.me} route={route} />
          </WhoAmI.Provider>
        </ErrorBoundary>
      </div>
    </ToastHost>
  );
}

function Main({ theme, me, route }: { theme: Theme; me: Me; route: Route }) {
  if (route.view === "jobs") return <JobsView />;
  if (route.view === "cluster") return <ClusterView isAdmin={me.role === "admin"} />;
  if (route.view === "settings") return <SettingsView me={me} />;
  if (route.view === "job") return <JobView id={route.id} tab={route.tab} theme={theme.shown} />;
  if (route.view === "compare") return <CompareView wanted={route.wanted} theme={theme.shown} />;
  return (
    <main class="page center">
      <Heading>Nothing here</Heading>
      <p class="soft">There is no page at {route.path}.</p>
      <a class="button" href="/">
        All jobs
      </a>
    </main>
  );
}

/** For the keyboard: past what is the same on every page. */
function SkipLink() {
  const skip = (event: Event) => {
    event.preventDefault(); // the hash of an address is a job's tab
    document.getElementById("main")?.focus();
  };
  return (
    // biome-ignore lint/a11y/useValidAnchor: it does lead to a place of the page, but leaves the address alone
    <a class="button skip" href="#main" onClick={skip}>
      Skip to the content
    </a>
  );
}

interface TopBarProps {
  theme: Theme;
  me: Me;
  route: Route;
  onSignedOut: () => void;
}

function TopBar({ theme, me, route, onSignedOut }: TopBarProps) {
  const say = useSay();
  const signOut = () => {
    remove("/session").then(onSignedOut, (error: unknown) => {
      if (error instanceof ApiError && error.isUnauthenticated) onSignedOut();
      else say("bad", `Still signed in. ${error instanceof Error ? error.message : String(error)}`);
    });
  };
  return (
    <header class="top">
      <a class="brand" href="/" aria-label="Rubato, all jobs">
        <Icon name="mark" />
        <span class="brand-name">Rubato</span>
      </a>
      <nav class="views" aria-label="Views">
        <ViewLink href="/" label="Jobs" isHere={["jobs", "job", "compare"].includes(route.view)} />
        <ViewLink href="/cluster" label="Cluster" isHere={route.view === "cluster"} />
        <ViewLink href="/settings" label="Settings" isHere={route.view === "settings"} />
      </nav>
      <span class="grow" />
      <button
        type="button"
        class="icon-button"
        onClick={theme.change}
        aria-label={`Theme: ${theme.choice}. Change`}
        title={`Theme: ${theme.choice}`}
      >
        <Icon name={theme.choice === "system" ? "system" : theme.choice === "light" ? "sun" : "moon"} />
      </button>
      <span class="soft who" title={`${me.user}, role: ${me.role}`}>
        {me.user}
      </span>
      <button type="button" class="icon-button" onClick={signOut} aria-label="Sign out" title="Sign out">
        <Icon name="leave" />
      </button>
    </header>
  );
}

function ViewLink({ href, label, isHere }: { href: string; label: string; isHere: boolean }) {
  return (
    <a href={href} aria-current={isHere ? "page" : undefined}>
      {label}
    </a>
  );
}

function Unreachable({ message, onRetry }: { message: string; onRetry: () => void }) {
  useEffect(() => {
    const timer = setInterval(onRetry, 3000);
    return () => clearInterval(timer);
  }, [onRetry]);
  return (
    <main class="page center">
      <h1>The service does not answer</h1>
      <p class="soft">{message}</p>
      <p class="soft">Training does not depend on it and goes on. This page tries again every few seconds.</p>
      <button type="button" class="button" onClick={onRetry}>
        Try now
      </button>
    </main>
  );
}
