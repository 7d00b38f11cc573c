// Builds the page into the folder that the wheel carries. React is the host's: its modules are read from globalThis.
import {readFileSync} from "node:fs";
import {fileURLToPath} from "node:url";
import {defineConfig} from "vitest/config";

const path = (name: string) => fileURLToPath(new URL(name, import.meta.url));

// What the documentation has, and the page offers to be loaded.
const alerts = {
  name: "alerts",
  generateBundle(this: {emitFile: (file: {type: "asset"; fileName: string; source: Uint8Array}) => void}) {
    for (const fileName of ["grafana.json", "grafana_alerts.yaml"]) {
      this.emitFile({type: "asset", fileName, source: readFileSync(path(`../docs/reference/${fileName}`))});
    }
  },
};

export default defineConfig(({mode}) => ({
  // Tests run on a React of their own.
  resolve: mode === "test" ? {} : {alias: {react: path("src/host/react.ts")}},
  plugins: [alerts as never],
  base: "./", // the parts are found beside lading.js, below any base URL of Airflow
  publicDir: "public",
  build: {
    outDir: path("../plugin/ui/static"),
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    rollupOptions: {
      input: {lading: path("src/main.tsx")},
      output: {
        format: "es",
        entryFileNames: "[name].js",
        chunkFileNames: "[name].js", // the API server lets browsers keep nothing without asking: no hash is needed
        manualChunks: (id) => (/node_modules\/(echarts|zrender|tslib)\/|src\/chart\/echarts\.ts/.test(id) ? "echarts" : undefined),
      },
    },
  },
  test: {include: ["tests/**/*.test.{ts,tsx}"], environment: "node", testTimeout: 600_000},
}));
