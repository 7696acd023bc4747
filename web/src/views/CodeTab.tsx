import { useEffect, useState } from "preact/hooks";
import { useResource } from "../live/hooks";
import { Copy } from "../parts/Copy";
import { Unread } from "../parts/Unread";
import { formatBytes, plural } from "../text/format";
import type { Code, CodeFile, CodeText, Job } from "../wire";

/** The files that the job runs, to be read. */
export function CodeTab({ job }: { job: Job }) {
  const { value, error, reload } = useResource<Code>(`/jobs/${job.id}/code`);
  if (error && !value) return <Unread error={error} onRetry={reload} />;
  if (!value) return <div class="card loading" role="status" aria-label="Loading the code" />;
  if (value.items.length === 0) return <NoCode code={value} />;
  return <Files job={job} code={value} />;
}

function Files({ job, code }: { job: Job; code: Code }) {
  const first = code.items.find((file) => file.is_entrypoint) ?? code.items[0];
  const [path, setPath] = useState(first?.path ?? "");
  return (
    <section class="card code-tab" aria-label="Code">
      <nav class="code-files" aria-label="Files">
        <p class="soft" title={code.name}>
          {code.source === "recipe"
            ? `recipe ${code.name}`
            : `${plural(code.items.length, "file")}, package ${code.name.slice(0, 12)}`}
        </p>
        <ul>
          {code.items.map((file) => (
            <li key={file.path}>
              <FileButton file={file} isShown={file.path === path} onClick={() => setPath(file.path)} />
            </li>
          ))}
        </ul>
      </nav>
      <FileText job={job} path={path} />
    </section>
  );
}

function FileButton({ file, isShown, onClick }: { file: CodeFile; isShown: boolean; onClick: () => void }) {
  return (
    <button type="button" aria-current={isShown} data-file={file.path} onClick={onClick}>
      <span>{file.path}</span>
      {file.is_entrypoint && <span class="code-entry">entrypoint</span>}
      <span class="soft">{formatBytes(file.bytes)}</span>
    </button>
  );
}

function FileText({ job, path }: { job: Job; path: string }) {
  const { value, error, reload } = useResource<CodeText>(
    `/jobs/${job.id}/code/text?path=${encodeURIComponent(path)}`,
  );
  // While the next file comes the last one stays: nothing jumps.
  const [shown, setShown] = useState<CodeText | null>(null);
  useEffect(() => {
    if (value) setShown(value);
  }, [value]);
  if (error) return <Unread error={error} onRetry={reload} />;
  const isStale = shown?.path !== path;
  return (
    <div class="code-text" aria-busy={isStale}>
      <header class="card-head">
        <h2>{path}</h2>
        {shown?.text && !isStale && <Copy text={shown.text} label={`Copy ${path}`} />}
      </header>
      {shown && <Body file={shown} />}
    </div>
  );
}

function Body({ file }: { file: CodeText }) {
  if (file.text === null) return <p class="empty soft">This is no text: {formatBytes(file.bytes)}.</p>;
  const lines = file.text.replace(/\n$/, "").split("\n");
  return (
    <>
      {file.is_cut && <p class="code-cut">Only the beginning of {formatBytes(file.bytes)} is shown.</p>}
      <div class="code-lines">
        <pre aria-hidden="true" class="code-numbers">
          {lines.map((_, index) => index + 1).join("\n")}
        </pre>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard */}
        <pre class="code-body" tabIndex={0}>
          {lines.join("\n")}
        </pre>
      </div>
    </>
  );
}

function NoCode({ code }: { code: Code }) {
  return (
    <div class="card empty">
      <h2>No code here</h2>
      <p class="soft">
        {code.name
          ? `The package ${code.name.slice(0, 12)} is not stored any more.`
          : `The job runs ${code.entrypoint || "code"} that lies on the nodes; it was submitted without a package.`}
      </p>
    </div>
  );
}
