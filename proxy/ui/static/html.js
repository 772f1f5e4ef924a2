/** What views are written with: Preact, its hooks, signals, and `html` for their markup. */
import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { Fragment, render } from "./vendor/preact.js";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { batch, computed, effect, signal, useComputed, useSignal, useSignalEffect } from "./vendor/signals.js";
export const html = htm.bind(h);
