// The user's choices, kept in the URL, so that they can be shared as a link and undone with the back button.
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
  /** Adds to the current choices; null removes one. `replace`: the back button skips this state. */
  set: (changes: Choices, options?: {replace?: boolean}) => void;
  /** The URL of the page with these changes to the current choices. */
  href: (changes: Choices) => string;
}

/** The URL of the page or a tab with changes to the choices of a query string. */
function withChanges(path: string, text: string, changes: Choices): string {
  const now = new URLSearchParams(text), all: Record<string, Choices[string]> = {};
  for (const name of now.keys()) all[name] = now.getAll(name);
  return path + search({...all, ...changes});
}

/** The choices of the page or a tab. */
export function useChoices(): Chosen {
  const text = useSearch(), path = usePath(), go = useGo();
  return useMemo(() => {
    const now = new URLSearchParams(text);
    return {
      get: (name: string) => now.get(name),
      all: (name: string) => now.getAll(name),
      // Based on the current URL, which on a busy machine can have changed since the last render.
      set: (changes: Choices, options?: {replace?: boolean}) => go(withChanges(path, location.search, changes), options),
      href: (changes: Choices) => withChanges(path, text, changes),
    };
  }, [text, path]);
}

/** The try that the view of a task instance's log or details showed last, by the addresses visited before, latest first;
 * null: the newest, or another page was shown.
 *
 * @param task: the path of the task instance
 */
export function tryShown(visited: readonly (string | null)[], task: string): string | null {
  const its = decodeURIComponent(task);
  for (const address of visited) {
    if (address === null) return null;
    const {pathname, searchParams} = new URL(address), path = decodeURIComponent(pathname), at = path.indexOf(its);
    const rest = at < 0 ? null : path.slice(at + its.length);
    if (rest === "" || rest === "/details") return searchParams.get("try_number");
    if (rest === null || !rest.startsWith("/") || rest.startsWith("/mapped/")) return null;
  }
  return null;
}
interface History {entries: () => {url: string | null}[]; currentEntry: {index: number} | null}
/** The addresses visited before this one, latest first; none in a browser without the Navigation API. */
function visited(): (string | null)[] {
  const {navigation} = globalThis as {navigation?: History};
  return navigation ? navigation.entries().slice(0, Math.max(0, navigation.currentEntry?.index ?? 0)).map(({url}) => url).reverse() : [];
}
/** The try to show first: the one in the URL, or that of the log view from which the user came, because Airflow's tabs
 * drop it; null: the newest.
 *
 * @param task: the path of the task instance
 */
export function useTry(task: string): string | null {
  const inUrl = useChoices().get("try_number");
  return useMemo(() => inUrl ?? tryShown(visited(), task), [inUrl, task]);
}
