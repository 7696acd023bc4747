import { useState } from "preact/hooks";
import { getAll, post, remove } from "../live/api";
import { useResource } from "../live/hooks";
import { Confirm } from "../parts/Confirm";
import { Copy } from "../parts/Copy";
import { FormDialog, ToldOnce } from "../parts/FormDialog";
import { pressedUnless } from "../parts/pressedUnless";
import { useSay } from "../parts/Toasts";
import { Unread } from "../parts/Unread";
import { useAct } from "../parts/useAct";
import { formatAgo } from "../text/format";
import type { Delivery, Webhook } from "../wire";
import { Deliveries } from "./Deliveries";

const TOPICS: [string, string][] = [
  ["status", "the status of a job changes"],
  ["scaling", "a job is scaled, or asked to be"],
  ["failure", "a job fails or restarts, or a worker is lost"],
  ["checkpoint", "a checkpoint is saved or deleted, or could not be"],
  ["asked", "a job asks for it, under notifications: in its spec"],
];

/** Addresses that are told what happens to a project's jobs. */
export function WebhooksTable({ project, now }: { project: string; now: number }) {
  const path = `/projects/${encodeURIComponent(project)}/webhooks`;
  const [edition, setEdition] = useState(0);
  const webhooks = useResource<Webhook[]>(`${path}?limit=200`, edition, getAll);
  const reload = () => setEdition((before) => before + 1);
  const create = async (filled: FormData) => {
    const made = await post<Webhook & { secret: string }>(path, {
      name: filled.get("name"),
      url: filled.get("url"),
      events: filled.getAll("events"),
    });
    reload();
    return (
      <ToldOnce secret={made.secret}>
        By this secret the receiver knows that a message is ours. Copy it now: it is not shown again.{" "}
        <Copy text={made.secret} label="Copy the secret" />
      </ToldOnce>
    );
  };
  return (
    <div class="part">
      <div class="card-head">
        <h3>Webhooks</h3>
        <FormDialog
          label="New webhook"
          title={`New webhook of ${project}`}
          confirm="Create"
          onSend={create}
          isSmall
        >
          <label class="field">
            Name
            <input name="name" required maxLength={63} autocomplete="off" />
          </label>
          <label class="field">
            Address
            <input name="url" type="url" required placeholder="https://" autocomplete="off" />
          </label>
          <fieldset class="field">
            <legend>Send a message when</legend>
            {TOPICS.map(([topic, meaning]) => (
              <label key={topic} class="check">
                <input type="checkbox" name="events" value={topic} /> {meaning}
              </label>
            ))}
            <small class="soft">Where you choose none: all of these but the last.</small>
          </fieldset>
        </FormDialog>
      </div>
      {webhooks.error && !webhooks.value && <Unread error={webhooks.error} onRetry={webhooks.reload} />}
      {webhooks.value?.length === 0 && <p class="soft">None.</p>}
      {webhooks.value && webhooks.value.length > 0 && (
        <div class="scroll-x">
          <table class="plain">
            <caption class="hidden">Webhooks of {project}</caption>
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Address</th>
                <th scope="col">Told of</th>
                <th scope="col">Made</th>
                <th scope="col">Actions</th>
              </tr>
            </thead>
            <tbody>
              {webhooks.value.map((webhook) => (
                <tr key={webhook.id} data-webhook={webhook.name}>
                  <th scope="row">{webhook.name}</th>
                  <td data-label="Address" class="row-wide">
                    {webhook.url}
                  </td>
                  <td data-label="Told of">{webhook.events.join(", ")}</td>
                  <td title={webhook.created_at} data-label="Made">
                    {formatAgo(webhook.created_at, now)}
                  </td>
                  <td class="row-wide">
                    <Actions
                      path={`${path}/${encodeURIComponent(webhook.name)}`}
                      name={webhook.name}
                      now={now}
                      onDone={reload}
                    />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

/** How long a test is waited for. */
const TEST_S = 15;

interface ActionsProps {
  path: string;
  name: string;
  now: number;
  onDone: () => void;
}

function Actions({ path, name, now, onDone }: ActionsProps) {
  const say = useSay();
  const { isBusy, act } = useAct();
  const test = () =>
    void act(
      () => post<Delivery>(`${path}/test?wait=${TEST_S}`),
      null,
      (delivery) => say(delivery.status === "delivered" ? "good" : "bad", describeTest(name, delivery)),
    );
  return (
    <div class="actions nowrap">
      <button type="button" class="button small" {...pressedUnless(isBusy, test)}>
        Send a test
      </button>
      <Deliveries path={path} name={name} now={now} />
      <Confirm
        label="Remove"
        title={`Remove ${name}?`}
        confirm="Remove"
        isDanger
        isSmall
        isHeld={isBusy}
        onConfirm={() => void act(() => remove(path), `${name} is gone`, onDone)}
      >
        <p>Nothing more is sent there, and what became of earlier messages is forgotten.</p>
      </Confirm>
    </div>
  );
}

function describeTest(name: string, delivery: Delivery): string {
  if (delivery.status === "delivered") return `${name} took the test (status ${delivery.last_status})`;
  if (delivery.status === "pending")
    return `${name} has not answered within ${TEST_S} s; the test is still on its way`;
  return `${name} did not take the test: ${delivery.error}`;
}
