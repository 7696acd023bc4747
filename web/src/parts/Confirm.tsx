import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";
import { Icon, type IconName } from "./Icon";
import { pressedUnless } from "./pressedUnless";

interface ConfirmProps {
  /** On the button that asks. */
  label: string;
  icon?: IconName;
  /** The question, as a heading. */
  title: string;
  /** On the button that does it. */
  confirm: string;
  /** On the button that leaves things as they are. */
  dismiss?: string;
  onConfirm: () => void;
  isDanger?: boolean;
  isSmall?: boolean;
  /** Its label is read aloud, and shown when one points at it. */
  isIcon?: boolean;
  /** It cannot be asked for now. */
  isHeld?: boolean;
  /** What it means. */
  children: ComponentChildren;
}

/** A button, and behind it a question: for what cannot be taken back, or needs a word more. */
export function Confirm(props: ConfirmProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  const tone = props.isDanger ? " danger" : "";
  const close = () => dialog.current?.close();
  return (
    <>
      <button
        type="button"
        class={props.isIcon ? `icon-button${tone}` : `button${tone}${props.isSmall ? " small" : ""}`}
        aria-label={props.isIcon ? props.title.replace("?", "") : undefined}
        title={props.isIcon ? props.label : undefined}
        {...pressedUnless(props.isHeld ?? false, () => dialog.current?.showModal())}
      >
        {props.icon && <Icon name={props.icon} />} {!props.isIcon && props.label}
      </button>
      <dialog ref={dialog} class="card dialog" aria-labelledby={title}>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            close();
            props.onConfirm();
          }}
        >
          <h2 id={title}>{props.title}</h2>
          {props.children}
          <p class="actions end">
            <button type="button" class="button" onClick={close}>
              {props.dismiss ?? "Close"}
            </button>
            <button type="submit" class={`button${tone || " primary"}${props.isDanger ? " solid" : ""}`}>
              {props.confirm}
            </button>
          </p>
        </form>
      </dialog>
    </>
  );
}
