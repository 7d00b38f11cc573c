// What Airflow's UI provides in addition to React. Any of it can be missing in other versions, so all users have a fallback.
import type {ComponentType, ReactNode} from "react";

/** Chakra's components, none of which the host guarantees. */
export type Component = ComponentType<Record<string, unknown> & {children?: ReactNode}> & Record<string, ComponentType<Record<string, unknown> & {children?: ReactNode}>>;

interface Location {pathname: string; search: string; hash: string}
type Navigate = (to: string, options?: {replace?: boolean}) => void;
interface Router {
  Link?: ComponentType<Record<string, unknown> & {children?: ReactNode}>;
  useNavigate?: () => Navigate;
  useLocation?: () => Location;
}
type Portal = (children: ReactNode, container: Element) => ReactNode;
interface Globals {ChakraUI?: Record<string, Component | undefined>; ReactRouterDOM?: Router; ReactDOM?: {createPortal?: Portal}}

const globals = globalThis as unknown as Globals;
export const chakra: Record<string, Component | undefined> = globals.ChakraUI ?? {};
export const router: Router = globals.ReactRouterDOM ?? {};
export const portal: Portal | undefined = globals.ReactDOM?.createPortal;
