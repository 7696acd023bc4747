/** Whether a token still opens anything. */

import type { Token } from "../wire";

export function isGood(token: Pick<Token, "revoked_at" | "expires_at">, now: number): boolean {
  return token.revoked_at === null && (token.expires_at === null || Date.parse(token.expires_at) > now);
}
