import { useState } from "preact/hooks";
import { Icon } from "../parts/Icon";
import { SearchField } from "../parts/SearchField";
import { type LogWish, parseRanks, ranksText } from "../state/logs";

/** More ranks than this are typed, not clicked. */
const MOST_CHIPS = 16;

const AGES: [name: string, minutes: number | null][] = [
  ["All times", null],
  ["Last 5 min", 5],
  ["Last hour", 60],
  ["Last day", 1440],
];

interface LogsBarProps {
  wish: LogWish;
  /** Those that have written something. */
  ranks: readonly number[];
  counted: string;
  /** All lines of the wish as a text file. */
  file: { href: string; name: string };
  onWish: (wish: LogWish) => void;
  onFailure: (() => void) | null;
}

/** Ranks, age and text of the lines to be shown. */
export function LogsBar({ wish, ranks, counted, file, onWish, onFailure }: LogsBarProps) {
  const since = (minutes: string) =>
    minutes ? new Date(Date.now() - Number(minutes) * 60_000).toISOString() : "";
  return (
    <div class="logs-bar">
      {ranks.length > MOST_CHIPS ? (
        <RankField wish={wish} onWish={onWish} />
      ) : (
        <RankChips wish={wish} ranks={ranks} onWish={onWish} />
      )}
      <span class="grow" />
      {onFailure && (
        <button type="button" class="button small" onClick={onFailure}>
          Jump to the failure
        </button>
      )}
      <span class="soft">{counted}</span>
      <select
        aria-label="Age of the lines shown"
        onChange={({ currentTarget }) => onWish({ ...wish, since: since(currentTarget.value) })}
      >
        {AGES.map(([name, minutes]) => (
          <option key={name} value={minutes ?? ""} selected={minutes === null && wish.since === ""}>
            {name}
          </option>
        ))}
      </select>
      <SearchField
        label="Find in logs"
        placeholder="Find in logs"
        text={wish.text}
        onText={(text) => onWish({ ...wish, text })}
      />
      <a
        class="button small"
        href={file.href}
        download={file.name}
        title="These lines of the whole log, as text"
      >
        <Icon name="download" /> Download
      </a>
    </div>
  );
}

function RankChips({ wish, ranks, onWish }: Pick<LogsBarProps, "wish" | "ranks" | "onWish">) {
  const flip = (rank: number) => {
    const next = new Set(wish.ranks);
    if (!next.delete(rank)) next.add(rank);
    onWish({ ...wish, ranks: next });
  };
  return (
    <fieldset class="chips" aria-label="Ranks shown">
      {ranks.map((rank) => (
        <button
          type="button"
          key={rank}
          class={`chip-toggle rank-${rank % 6}`}
          aria-pressed={wish.ranks.has(rank)}
          onClick={() => flip(rank)}
        >
          rank {rank}
        </button>
      ))}
    </fieldset>
  );
}

function RankField({ wish, onWish }: Pick<LogsBarProps, "wish" | "onWish">) {
  /** What was typed, and the ranks that were wished with it: with other ones it is forgotten. */
  const [typed, setTyped] = useState<{ text: string; ranks: ReadonlySet<number> } | null>(null);
  const text = typed?.ranks === wish.ranks ? typed.text : ranksText(wish.ranks);
  const read = (next: string) => {
    const ranks = parseRanks(next) ?? new Set(wish.ranks);
    setTyped({ text: next, ranks });
    onWish({ ...wish, ranks });
  };
  return (
    <input
      class="rank-field"
      aria-label="Ranks shown"
      aria-invalid={parseRanks(text) === null}
      title="Such as 0, 3, 8-12; empty: all"
      placeholder="ranks: 0, 3, 8-12"
      value={text}
      onInput={(event) => read(event.currentTarget.value)}
    />
  );
}
