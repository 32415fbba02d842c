// What views are written with: preact's components and hooks, and htm's templates bound to them.
import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { Fragment, createContext, createRef, render } from "./vendor/preact.js";
export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "./vendor/hooks.js";
export { h };
export const html = htm.bind(h);
