import { render } from "preact";
import { App } from "./app";
import { keepFocus } from "./parts/keepFocus";
import "uplot/dist/uPlot.min.css";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";
import "./styles/form.css";
import "./styles/jobs.css";
import "./styles/job.css";
import "./styles/panels.css";
import "./styles/board.css";
import "./styles/timeline.css";
import "./styles/logs.css";
import "./styles/cluster.css";
import "./styles/settings.css";
import "./styles/compare.css";

const root = document.getElementById("page");
if (root) {
  keepFocus(root);
  render(<App />, root);
}
