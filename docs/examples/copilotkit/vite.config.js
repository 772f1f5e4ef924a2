// The page asks its own server, which hands what is below /api/ on to the runtime.
import { env } from "node:process";

const target = env.RUNTIME_URL ?? "http://127.0.0.1:4000";

export default {
  server: { proxy: { "/api/": { target, changeOrigin: true } } },
};
