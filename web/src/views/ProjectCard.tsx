import { useState } from "preact/hooks";
import { useResource } from "../live/hooks";
import { Unread } from "../parts/Unread";
import type { Project, ProjectDetail } from "../wire";
import { SecretsTable } from "./SecretsTable";
import { WebhooksTable } from "./WebhooksTable";

/** A project: what it uses of its quota, who is in it, its secrets and its webhooks. */
export function ProjectCard({ project, isAdmin, now }: { project: Project; isAdmin: boolean; now: number }) {
  const [isOpen, setOpen] = useState(false);
  const id = `project-${project.name}`;
  const mayManage = isAdmin || project.role === "admin";
  return (
    <section class="card project" aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>Project {project.name}</h2>
        <span class="soft">{project.description}</span>
        <span class="grow" />
        <span class="soft">{isAdmin ? "administrator" : project.role}</span>
        <button type="button" class="button small" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "Close" : "Open"} <span class="hidden">{project.name}</span>
        </button>
      </div>
      {isOpen && <Detail name={project.name} mayManage={mayManage} now={now} />}
    </section>
  );
}

function Detail({ name, mayManage, now }: { name: string; mayManage: boolean; now: number }) {
  const project = useResource<ProjectDetail>(`/projects/${encodeURIComponent(name)}`, now);
  if (!project.value) {
    return project.error ? <Unread error={project.error} onRetry={project.reload} /> : null;
  }
  const { quota, use, members } = project.value;
  return (
    <>
      <dl class="about">
        <dt>Slots</dt>
        <dd>{within(use.slots, quota.max_slots, "in use")}</dd>
        <dt>Queue</dt>
        <dd>{within(use.queued, quota.max_queued, "waiting")}</dd>
        <dt>Priority</dt>
        <dd>{quota.max_priority === null ? "up to 100" : `up to ${quota.max_priority}`}</dd>
        <dt>Members</dt>
        <dd>
          {members.length === 0 && <span class="soft">administrators only</span>}
          {members.map((member) => (
            <span key={member.user} class="member">
              {member.user} <span class="soft">{member.role}</span>
            </span>
          ))}
        </dd>
      </dl>
      <SecretsTable project={name} mayManage={mayManage} now={now} />
      {mayManage && <WebhooksTable project={name} now={now} />}
    </>
  );
}

function within(used: number, most: number | null, what: string): string {
  return most === null ? `${used} ${what}, no limit` : `${used} of ${most} ${what}`;
}
