import { Component, type ComponentChildren } from "preact";

interface State {
  message: string | null;
}

/** Keeps one broken view from taking the whole page with it; another page gets another one of these. */
export class ErrorBoundary extends Component<{ children: ComponentChildren }, State> {
  override state: State = { message: null };

  override componentDidCatch(error: unknown): void {
    this.setState({ message: error instanceof Error ? error.message : String(error) });
  }

  override render() {
    if (this.state.message === null) return this.props.children;
    return (
      <main class="page center">
        <h1>The page made a mistake</h1>
        <p class="soft">{this.state.message}</p>
        <p class="soft">The job is not touched by this. Loading the page again helps in most cases.</p>
        <p class="actions">
          <button type="button" class="button" onClick={() => location.reload()}>
            Load again
          </button>
        </p>
      </main>
    );
  }
}
