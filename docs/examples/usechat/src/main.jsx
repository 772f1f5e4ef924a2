// Which backend answers is in the URL alone: `?api=/as/aisdk/to/herm`; so is the chat: `&chat=ID`.
// `?own` is the page that the documentation quotes.
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { Chat } from "./Chat.jsx";
import { OwnPage } from "./OwnPage.jsx";

const url = new URL(window.location.href);
const api = url.searchParams.get("api") ?? "/as/aisdk/to/engine";
const chat = url.searchParams.get("chat") ?? crypto.randomUUID();
const own = url.searchParams.has("own");

if (!own) {
  url.searchParams.set("chat", chat);
  window.history.replaceState(null, "", url);
}
createRoot(document.getElementById("page")).render(
  <StrictMode>{own ? <OwnPage /> : <Chat api={api} chat={chat} />}</StrictMode>,
);
