// What Airflow's UI offers beside React. Each of it may be missing in another version: whoever uses it has a fall-back.
import type {ComponentType, ReactNode} from "react";

/** Chakra's components, of which the host promises none. */
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
