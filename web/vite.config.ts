import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

/** What a visitor may have to load before the page works; interfaces.md promises less than 150 kB. */
const LIMIT_BYTES = 150_000;

/** Prints the gzipped size of everything in dist and fails the build above the limit. */
function sizeLimit(): Plugin {
  let root = "";
  return {
    name: "size-limit",
    apply: "build",
    configResolved(config) {
      root = join(config.root, config.build.outDir);
    },
    closeBundle() {
      const names = readdirSync(root, { recursive: true, withFileTypes: true }).filter((entry) =>
        entry.isFile(),
      );
      const bytes = names.reduce(
        (sum, entry) => sum + gzipSync(readFileSync(join(entry.parentPath, entry.name))).length,
        0,
      );
      const figure = `${(bytes / 1000).toFixed(1)} kB of ${LIMIT_BYTES / 1000} kB gzipped, all files`;
      if (bytes > LIMIT_BYTES) throw new Error(`the page has grown too large: ${figure}`);
      console.log(`page size: ${figure}`);
    },
  };
}

export default defineConfig({
  plugins: [sizeLimit()],
  build: {
    // Browsers that know light-dark(): colours are written once, in tokens.css.
    target: ["chrome123", "firefox121", "safari17.5"],
    // The service's content security policy allows no data: URLs and no inline scripts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    port: 5173,
    proxy: { "/api": { target: process.env.RUBATO_URL ?? "http://127.0.0.1:8642", changeOrigin: true } },
  },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
} as Parameters<typeof defineConfig>[0]);
