import { useState } from "preact/hooks";
import { getAll, put, remove } from "../live/api";
import { useResource } from "../live/hooks";
import { Confirm } from "../parts/Confirm";
import { FormDialog } from "../parts/FormDialog";
import { Unread } from "../parts/Unread";
import { useAct } from "../parts/useAct";
import { formatAgo } from "../text/format";
import type { Secret } from "../wire";

interface SecretsTableProps {
  project: string;
  mayManage: boolean;
  now: number;
}

/** Secrets of a project by name; nobody is ever shown a value. */
export function SecretsTable({ project, mayManage, now }: SecretsTableProps) {
  const path = `/projects/${encodeURIComponent(project)}/secrets`;
  const [edition, setEdition] = useState(0);
  const secrets = useResource<Secret[]>(`${path}?limit=200`, edition, getAll);
  const { isBusy, act } = useAct();
  const reload = () => setEdition((before) => before + 1);
  const set = async (filled: FormData) => {
    await put(`${path}/${encodeURIComponent(String(filled.get("name")))}`, { value: filled.get("value") });
    reload();
    return null;
  };
  return (
    <div class="part">
      <div class="card-head">
        <h3>Secrets</h3>
        {mayManage && (
          <FormDialog
            label="Set a secret"
            title={`Set a secret of ${project}`}
            confirm="Set"
            onSend={set}
            isSmall
          >
            <label class="field">
              Name of the environment variable that training programs read
              <input
                name="name"
                required
                maxLength={128}
                pattern="[A-Za-z_][A-Za-z0-9_]*"
                autocomplete="off"
              />
            </label>
            <label class="field">
              Value: kept encrypted, and never shown again
              <textarea name="value" required rows={3} spellcheck={false} autocomplete="off" />
            </label>
          </FormDialog>
        )}
      </div>
      {secrets.error && !secrets.value && <Unread error={secrets.error} onRetry={secrets.reload} />}
      {secrets.value?.length === 0 && (
        <p class="soft">
          None. A job names those that it needs under <code>secrets:</code> of its spec.
        </p>
      )}
      {secrets.value && secrets.value.length > 0 && (
        <div class="scroll-x">
          <table class="plain">
            <caption class="hidden">Secrets of {project}</caption>
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Set</th>
                <th scope="col">By</th>
                {mayManage && <th scope="col">Actions</th>}
              </tr>
            </thead>
            <tbody>
              {secrets.value.map((secret) => (
                <tr key={secret.name} data-secret={secret.name}>
                  <th scope="row">
                    <code>{secret.name}</code>
                  </th>
                  <td title={secret.updated_at} data-label="Set">
                    {formatAgo(secret.updated_at, now)}
                  </td>
                  <td data-label="By">{secret.updated_by}</td>
                  {mayManage && (
                    <td class="row-wide">
                      <Confirm
                        label="Remove"
                        title={`Remove ${secret.name}?`}
                        confirm="Remove"
                        isDanger
                        isSmall
                        isHeld={isBusy}
                        onConfirm={() =>
                          void act(
                            () => remove(`${path}/${encodeURIComponent(secret.name)}`),
                            `${secret.name} is gone`,
                            reload,
                          )
                        }
                      >
                        <p>The next attempt of a job that needs it fails, and says so.</p>
                      </Confirm>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}
