// The React instance that Airflow's UI has loaded; a page must not have two.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
const host = (globalThis as any).React;
export default host;
export const {
  Component, Fragment, createContext, createElement, memo, useCallback, useContext, useDeferredValue, useEffect, useId, useLayoutEffect, useMemo, useRef, useState,
} = host;
