/** What a token opens: whether it still does, and what ends with it. */

import type { Me, Token } from "../wire";

export function isGood(token: Pick<Token, "revoked_at" | "expires_at">, now: number): boolean {
  return token.revoked_at === null && (token.expires_at === null || Date.parse(token.expires_at) > now);
}

/** What the service's own token for administrators is called; no user is. */
const HOMES = "admin";

/** Whether one is signed in by the home's own token, which belongs to no user. */
export function isHomes(me: Pick<Me, "user">): boolean {
  return me.user === HOMES;
}

/** What revoking a token comes to, as sentences. */
export function costOf(
  token: Pick<Token, "role" | "user" | "cluster" | "name">,
  me: Pick<Me, "user">,
): string[] {
  if (token.role === "cluster") return [...agentsCost(token.cluster), ...renewal(token)];
  if (token.role === "scraper") {
    return [
      "Whatever reads the service's metrics with it, such as Prometheus, is refused from now on: scraping stops.",
      ...renewal(token),
    ];
  }
  const general =
    "What uses it is refused from now on, and pages that were signed in with it are signed out.";
  if (token.role === "admin") {
    const mine = isHomes(me)
      ? "You are signed in with it: you are signed out at once, and it lets nobody in again."
      : "";
    return [mine || general, "The command line on the service's machine is refused, too.", ...renewal(token)];
  }
  if (token.user === me.user)
    return [general, "If this page is one of them, you need another token to come back."];
  return [general];
}

function agentsCost(cluster: string | null): string[] {
  return [
    `${cluster === null ? "Every agent that uses it" : `The agent of the cluster ${cluster}`} is refused from now on.`,
    "Its cluster counts as offline then: nothing more is started there, and nobody looks after the jobs that run " +
      "there until the agent has another token.",
  ];
}

const FILES: Record<string, string> = { admin: "token", cluster: "cluster-token", scraper: "scraper-token" };

/** Of the service's own tokens, which lie in its home. */
function renewal({ name, role, user }: Pick<Token, "name" | "role" | "user">): string[] {
  if (user !== null || name !== role) return [];
  return [
    "If it is the service's own, as its name says, the next start of the service makes another one, " +
      `in ${FILES[role]} of its home.`,
  ];
}
