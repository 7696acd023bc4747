import { useEffect } from "preact/hooks";
import { getAll } from "../live/api";
import { useNow, useResource } from "../live/hooks";
import { Heading } from "../parts/Heading";
import { StaleNote } from "../parts/StaleNote";
import { Unread } from "../parts/Unread";
import type { Me, Project } from "../wire";
import { ProjectCard } from "./ProjectCard";
import { TokensCard } from "./TokensCard";

/** Who this is, the tokens, and what belongs to projects: quotas, members, secrets, webhooks. */
export function SettingsView({ me }: { me: Me }) {
  const now = useNow(60_000);
  const projects = useResource<Project[]>("/projects?limit=200", now, getAll);
  useEffect(() => {
    document.title = "Settings · Rubato";
  }, []);
  return (
    <main class="page settings">
      <StaleNote of={projects} now={now} />
      <div class="page-head">
        <Heading>Settings</Heading>
      </div>
      <AboutCard me={me} />
      <TokensCard me={me} now={now} />
      {projects.error && !projects.value && <Unread error={projects.error} onRetry={projects.reload} />}
      {projects.value?.map((project) => (
        <ProjectCard key={project.name} project={project} isAdmin={me.role === "admin"} now={now} />
      ))}
      {projects.value?.length === 0 && (
        <section class="card empty">
          <h2>No project yet</h2>
          <p class="soft">
            An administrator gives you a role in one; jobs, secrets and webhooks are there then.
          </p>
        </section>
      )}
    </main>
  );
}

function AboutCard({ me }: { me: Me }) {
  const version = useResource<{ version: string }>("/version", 0);
  return (
    <section class="card" aria-labelledby="about-title">
      <div class="card-head">
        <h2 id="about-title">You and this service</h2>
      </div>
      <dl class="about">
        <dt>Signed in as</dt>
        <dd>
          {me.user} <span class="soft">{me.role === "admin" ? "administrator" : me.role}</span>
        </dd>
        <dt>Service</dt>
        <dd>{version.value ? `Rubato ${version.value.version}` : (version.error?.message ?? "…")}</dd>
        <dt>Address</dt>
        <dd>
          <code>{location.origin}</code>
        </dd>
      </dl>
    </section>
  );
}
