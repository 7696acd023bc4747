import { Icon } from "./Icon";

interface SearchFieldProps {
  /** What it searches, for who cannot see the page. */
  label: string;
  placeholder: string;
  text: string;
  onText: (text: string) => void;
}

/** A field to search by, as all lists have it. */
export function SearchField({ label, placeholder, text, onText }: SearchFieldProps) {
  return (
    <label class="search">
      <Icon name="search" />
      <input
        type="search"
        placeholder={placeholder}
        aria-label={label}
        value={text}
        onInput={(event) => onText(event.currentTarget.value)}
      />
    </label>
  );
}
