/**
 * What a button takes in place of `disabled` and `onClick`. One that cannot be pressed for now keeps the focus: of a
 * disabled one it falls to the document's body, and who came by the keyboard begins anew at the top of the page.
 */
export function pressedUnless(isHeld: boolean, press?: () => void) {
  const onClick = (event: Event) => {
    if (isHeld)
      event.preventDefault(); // a form is not sent, by Enter in a field neither
    else press?.();
  };
  return { "aria-disabled": isHeld, onClick };
}
