import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The page works below any prefix, so all its links are relative. Names of files are without digests: the server sends
// validators with each file, and a build of the same sources has the same names.
export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: {
    outDir: "../parallax_web/page",
    emptyOutDir: true,
    license: { fileName: "licenses.md" },
    target: "es2022",
    modulePreload: { polyfill: false },
    rolldownOptions: {
      output: {
        entryFileNames: "page.js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
      },
    },
  },
  server: {
    proxy: Object.fromEntries(["/v1", "/session", "/health", "/version"].map((path) => [path, "http://127.0.0.1:8000"])),
  },
});
