import { Copy } from "../parts/Copy";
import { specLines } from "../text/spec";
import { toYaml } from "../text/yaml";
import type { Job } from "../wire";

/** The spec as the service resolved it: what was given stands out from the defaults; the user's own config comes first. */
export function SpecTab({ job }: { job: Job }) {
  const spec = (job.spec ?? {}) as Record<string, unknown>;
  const config = (spec.config ?? {}) as Record<string, unknown>;
  const lines = specLines(spec, job.spec_given ?? []);
  return (
    <div class="spec">
      {Object.keys(config).length > 0 && (
        <section class="card">
          <header class="card-head">
            <h2>Config</h2>
          </header>
          <dl class="facts column">
            {Object.entries(config).map(([key, value]) => (
              <div key={key}>
                <dt>{key}</dt>
                <dd>
                  <code>{typeof value === "string" ? value : JSON.stringify(value)}</code>
                </dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      <section class="card">
        <header class="card-head">
          <h2>Spec</h2>
          {job.spec_given && <span class="soft">bold: given; the rest are defaults</span>}
          <span class="grow" />
          <Copy text={toYaml(spec)} label="Copy the spec" />
        </header>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolled region must be reachable by keyboard */}
        <pre class="code" tabIndex={0}>
          {lines.map((line, index) => (
            <span key={index} class={line.isGiven ? "spec-given" : "spec-default"} data-given={line.isGiven}>
              {line.text}
              {"\n"}
            </span>
          ))}
        </pre>
      </section>
    </div>
  );
}
