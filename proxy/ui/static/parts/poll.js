/** What is asked again and again while it is looked at. */
import { get } from "../api.js";
import { useEffect, useState } from "../html.js";

/** Do `work(signal)` every two seconds while the tab is seen, until the view is left or a key is wanted;
 * gives why it failed the last time, or "". */
export function usePoll(work) {
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      while (!stop.signal.aborted) {
        if (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
        const error = await work(stop.signal).then(() => null, (error) => error);
        if (stop.signal.aborted || error?.status === 401) return;
        setFailed(error?.message ?? "");
        await new Promise((done) => setTimeout(done, 2000));
      }
    })();
    return () => stop.abort();
  }, []);
  return failed;
}

/** Yield the pages of the list of sessions, a short one first; a parameter may have several values. */
export async function* pages(query, signal) {
  const search = new URLSearchParams({ limit: 100 });
  for (const [name, values] of Object.entries(query)) for (const value of [values].flat()) search.append(name, value);
  for (let next = 0; next !== null; search.set("limit", 1000)) {
    if (next) search.set("before", next);
    const page = await get(`/sessions?${search}`, { signal });
    yield page.sessions;
    next = page.next;
  }
}
