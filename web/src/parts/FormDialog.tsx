import type { ComponentChildren } from "preact";
import { useId, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./Icon";
import { pressedUnless } from "./pressedUnless";

interface FormDialogProps {
  /** On the button that opens it. */
  label: string;
  /** Of that button, for others that press it. */
  id?: string;
  icon?: IconName;
  title: string;
  /** On the button that sends it. */
  confirm: string;
  /** Sends what was filled in; what it gives is shown in place of the form, null closes it. Failures are shown in it. */
  onSend: (filled: FormData) => Promise<ComponentChildren | null>;
  isSmall?: boolean;
  /** The fields, as they are when it opens. */
  children: ComponentChildren;
}

/** Where one goes on after a refusal. */
const FIELD = ":is(input, select, textarea):not([type=hidden])";

/** A button, and behind it a form that stays open until what it asks for is done. */
export function FormDialog(props: FormDialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  const [isOpen, setOpen] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const [outcome, setOutcome] = useState<ComponentChildren | null>(null);
  const close = () => dialog.current?.close();
  const open = () => {
    setOpen(true);
    setError(null);
    dialog.current?.showModal();
  };
  const forget = () => {
    setOpen(false);
    setOutcome(null); // it may be a secret, which is not kept longer than it is shown
  };
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    setError(null);
    try {
      const answer = await props.onSend(new FormData(form));
      if (answer === null) close();
      else setOutcome(answer);
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
      form.querySelector<HTMLElement>(FIELD)?.focus();
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button id={props.id} type="button" class={`button${props.isSmall ? " small" : ""}`} onClick={open}>
        {props.icon && <Icon name={props.icon} />} {props.label}
      </button>
      <dialog ref={dialog} class="card dialog" aria-labelledby={title} onClose={forget}>
        <h2 id={title}>{props.title}</h2>
        {isOpen && outcome !== null && (
          <>
            {outcome}
            <p class="actions end">
              <button type="button" class="button primary" onClick={close}>
                Done
              </button>
            </p>
          </>
        )}
        {isOpen && outcome === null && (
          <form onSubmit={(event) => void send(event)}>
            {props.children}
            <p class="error" role="alert">
              {error}
            </p>
            <p class="actions end">
              <button type="button" class="button" onClick={close}>
                Close
              </button>
              <button type="submit" class="button primary" {...pressedUnless(isBusy)}>
                {props.confirm}
              </button>
            </p>
          </form>
        )}
      </dialog>
    </>
  );
}

/** What is told once and never again: a token, a signing secret. */
export function ToldOnce({ secret, children }: { secret: string; children: ComponentChildren }) {
  return (
    <>
      <p>{children}</p>
      <output class="told-once">
        <code>{secret}</code>
      </output>
    </>
  );
}
