/** The control API. The key is held here, in memory, and nowhere else: a reload forgets it. */
import { signal } from "./html.js";

const BASE = "/api/v1";

/** The key that is sent with each request, or "". */
export const key = signal("");

/** Why a key is wanted: the words of the last 401, or "". */
export const refused = signal("");

/** Whether the server answered the last request at all. */
export const reachable = signal(true);

/** What the server refused: `status` is that of HTTP, `code` is for programs. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** The headers of a request with the key. */
export const headers = (more = {}) =>
  key.value ? { authorization: `Bearer ${key.value}`, ...more } : more;

/** The address of a path of the API; parameters that are null or "" are left out. */
export function address(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== "") search.append(name, value);
  return BASE + path + (search.size ? `?${search}` : "");
}

/** Ask; gives the Response, or raises an ApiError. `json` or `body` is what is sent. */
export async function ask(path, { method = "GET", query, json, body, signal: stop, ...more } = {}) {
  const options = { method, headers: headers(more.headers), signal: stop, cache: "no-store" };
  if (json !== undefined) {
    options.body = JSON.stringify(json);
    options.headers = { ...options.headers, "content-type": "application/json" };
  } else if (body !== undefined) options.body = body;
  let response;
  try {
    response = await fetch(address(path, query), options);
  } catch (error) {
    if (error.name !== "AbortError") reachable.value = false;
    throw error;
  }
  reachable.value = true;
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  const error = said?.error ?? {};
  if (response.status === 401) refused.value = error.message ?? "A key is needed.";
  throw new ApiError(response.status, error.code ?? "", error.message ?? response.statusText);
}

/** Ask for JSON. */
export const get = async (path, options) => (await ask(path, options)).json();

/** Yield arrays of the JSON values of a body of lines, as they come; heartbeats are skipped. */
export async function* lines(path, options) {
  const response = await ask(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const pieces = (rest + (value ?? "")).split("\n");
    rest = done ? "" : pieces.pop();
    const found = pieces.filter((line) => line.trim()).map((line) => JSON.parse(line));
    const last = found.at(-1);
    if (last?.error && last.seq === undefined)
      throw new ApiError(response.status, last.error.code, last.error.message);
    if (found.length) yield found;
    if (done) return;
  }
}

/** Save what a path answers as a file. */
export async function download(path, name, options) {
  save(await (await ask(path, options)).blob(), name);
}

/** Save a Blob as a file. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The request as a line for a shell; a key stands there as a variable. */
export function curl(path, query) {
  const shown = key.value ? ` -H "authorization: Bearer $DRAGOMAN_KEY"` : "";
  return `curl -sS${shown} '${location.origin}${address(path, query).replaceAll("'", "%27")}'`;
}
