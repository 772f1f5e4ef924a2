// A page of a browser in this process, for the drivers whose client is one of React.

/** Makes this process such a page, and returns its window. */
export function browse(JSDOM) {
  const { window } = new JSDOM("<!doctype html>", { url: "http://localhost/", pretendToBeVisual: true });
  const { document, HTMLElement, Node } = window;
  Object.assign(globalThis, { window, document, HTMLElement, Node });
  return window;
}

/** Draws what React has made in an element of its own, and returns the root of it. */
export function mount(createRoot, made) {
  const element = document.createElement("div");
  document.body.append(element);
  const root = createRoot(element);
  root.render(made);
  return root;
}
