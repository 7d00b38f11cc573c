// What the user has chosen, kept in the address: it can be sent to another, and the back button undoes it.
import {useEffect, useMemo, useState} from "react";
import {router} from "../host/globals";
import {PAGE, search, type Choices} from "../paths";

const noNavigate = () => (to: string, options?: {replace?: boolean}) => {
  const url = new URL(to.replace(/^\//, ""), document.baseURI);
  if (options?.replace) history.replaceState(null, "", url); else history.pushState(null, "", url);
  dispatchEvent(new PopStateEvent("popstate"));
};
export const useNavigate: () => (to: string, options?: {replace?: boolean}) => void =
  router.useNavigate ?? (() => (to: string) => location.assign(new URL(to.replace(/^\//, ""), document.baseURI)));
const useGo = router.useNavigate ?? noNavigate;

function useOwnSearch(): string {
  const [, redraw] = useState(0);
  useEffect(() => {
    const changed = () => redraw((turn: number) => turn + 1);
    addEventListener("popstate", changed);
    return () => removeEventListener("popstate", changed);
  }, []);
  return location.search;
}
const useHostSearch = () => router.useLocation?.().search ?? "";
const usePath = router.useLocation ? () => router.useLocation?.().pathname || PAGE : () => PAGE;
const useSearch = router.useLocation ? useHostSearch : useOwnSearch;

export interface Chosen {
  get: (name: string) => string | null;
  all: (name: string) => string[];
  /** Makes choices beside those that are made; null takes one back. `replace`: the back button does not stop here. */
  set: (changes: Choices, options?: {replace?: boolean}) => void;
  /** The address of the page with these choices beside those that are made. */
  href: (changes: Choices) => string;
}

/** The address of the page, or of a tab, with choices beside those of a search string. */
function withChanges(path: string, text: string, changes: Choices): string {
  const now = new URLSearchParams(text), all: Record<string, Choices[string]> = {};
  for (const name of now.keys()) all[name] = now.getAll(name);
  return path + search({...all, ...changes});
}

/** The choices of the page, or of a tab. */
export function useChoices(): Chosen {
  const text = useSearch(), path = usePath(), go = useGo();
  return useMemo(() => {
    const now = new URLSearchParams(text);
    return {
      get: (name: string) => now.get(name),
      all: (name: string) => now.getAll(name),
      // Beside what the address says by now: on a busy machine it may have changed since the page was drawn.
      set: (changes: Choices, options?: {replace?: boolean}) => go(withChanges(path, location.search, changes), options),
      href: (changes: Choices) => withChanges(path, text, changes),
    };
  }, [text, path]);
}
