import { Copy } from "../parts/Copy";
import { toYaml } from "../text/yaml";
import type { Job } from "../wire";

/** The spec as the service resolved it; what was set by the user's own config comes first. */
export function SpecTab({ job }: { job: Job }) {
  const spec = (job.spec ?? {}) as Record<string, unknown>;
  const config = (spec.config ?? {}) as Record<string, unknown>;
  const text = toYaml(spec);
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
          <Copy text={text} label="Copy the spec" />
        </header>
        <pre class="code">{text}</pre>
      </section>
    </div>
  );
}
