// The page asks its own server, which hands what is below /as/ on to Dragoman: so Dragoman has no
// other origin to allow, and the key stays out of the browser.
import { env } from "node:process";

const target = env.DRAGOMAN_URL ?? "http://127.0.0.1:8787";
const headers = env.DRAGOMAN_KEY ? { authorization: `Bearer ${env.DRAGOMAN_KEY}` } : {};

export default {
  server: { proxy: { "/as/": { target, headers, changeOrigin: true } } },
};
