// The page: navigation between its five views, and the search.
import * as React from "react";
import {useEffect, useState, type ComponentType} from "react";
import type {Summary} from "../api_types";
import {pagePath} from "../paths";
import {useAnswer} from "../polling";
import {useChoices, useNavigate, type Chosen} from "../ui/choices";
import {Anchor, Button, Frame, Input, Trouble} from "../ui/parts";
import {CostPage} from "./cost";
import {JobsPage} from "./jobs";
import {MachinesPage} from "./machines";
import {NowPage} from "./now";
import {WaitsPage} from "./waits";

export interface PageProps {
  chosen: Chosen;
  summary: Summary | null;
  trouble: string | null;
  now: number;
}

const VIEWS: readonly [string, string, ComponentType<PageProps>][] = [
  ["now", "Overview", NowPage],
  ["waits", "Waits", WaitsPage],
  ["machines", "Machines", MachinesPage],
  ["jobs", "Jobs", JobsPage],
  ["cost", "Cost", CostPage],
];

/** The search box. On the jobs view it adds to the filters; elsewhere it opens that view. */
function Find({chosen, isJobs}: {chosen: Chosen; isJobs: boolean}) {
  const now = isJobs ? chosen.get("q") ?? "" : "";
  const [text, setText] = useState(now), navigate = useNavigate();
  useEffect(() => setText(now), [now]);
  const find = () => {
    const q = text.trim() || null;
    if (isJobs) chosen.set({q, after: null}); else if (q) navigate(pagePath({view: "jobs", q}));
  };
  return (
    <div className="find" role="search">
      <Input label="Find a job or machine" value={text} placeholder="dag.task[3], run, id, machine" onChange={setText} onEnter={find} width="17em" />
      <Button onClick={find}>Find</Button>
    </div>
  );
}

export function Page() {
  const chosen = useChoices();
  const [summary, trouble, now] = useAnswer<Summary>("summary");
  const [key, title, View] = VIEWS.find(([name]) => name === chosen.get("view")) ?? VIEWS[0];
  const head = (
    <>
      <nav aria-label="Lading"><ul>{VIEWS.map(([name, title]) => (
        <li key={name}><Anchor to={pagePath({view: name === "now" ? null : name})} aria-current={name === key ? "page" : undefined}>{title}</Anchor></li>
      ))}</ul></nav>
      <Find chosen={chosen} isJobs={key === "jobs"} />
    </>
  );
  useEffect(() => {
    const before = document.title;
    document.title = `${title} – Lading`;
    return () => { document.title = before; };
  }, [title]);
  // These two views show the trouble themselves, in each section.
  const isSaid = key === "now" || key === "cost";
  return <Frame head={head}>{trouble && !isSaid ? <Trouble text={`Sites and permissions: ${trouble}`} /> : null}<View chosen={chosen} summary={summary} trouble={trouble} now={now} /></Frame>;
}
