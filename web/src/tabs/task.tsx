// The tab of a task instance: where each try ran and why, and what it requested and used.
import * as React from "react";
import type {TrySummary} from "../api_types";
import type {TryPage} from "../api_types";
import {count, spoken, startText} from "../format";
import {logPath, pagePath, taskData} from "../paths";
import {useAnswer} from "../polling";
import {useChoices, useTry} from "../ui/choices";
import {Awaited, Button, Frame, Link, Muted, Row, Section, Trouble} from "../ui/parts";
import {Facts, Phases, TryTable, allJobs} from "../ui/tries";

const start = ({start: expected}: TrySummary, now: number): [string, string][] =>
  expected ? [["Expected to start", `${startText(expected, now)}${expected.since === null ? ": " : ", based on "}${spoken(expected.text)}`]] : [];

/** A button for each try, which shows it first. */
function Tries({jobs, shown, choose}: {jobs: readonly TrySummary[]; shown: TrySummary; choose: (number: number) => void}) {
  const inOrder = [...jobs].sort((one, other) => one.try_number - other.try_number);
  return <Row>{inOrder.map((job) => <Button key={job.id} aria-pressed={job === shown} aria-label={`Show try ${job.try_number} first`} onClick={() => choose(job.try_number)}>{`try ${job.try_number}: ${job.state}`}</Button>)}</Row>;
}

export function TaskTab({dagId, runId, taskId, mapIndex}: {dagId: string; runId: string; taskId: string; mapIndex?: string}) {
  const choices = useChoices();
  const chosen = useTry(logPath({dag_id: dagId, run_id: runId, task_id: taskId, map_index: Number(mapIndex ?? -1)}) ?? "");
  const path = taskData(dagId, runId, taskId), parameters = {map_index: mapIndex ?? null};
  const [found, trouble, now] = useAnswer<TryPage>(path, parameters);
  if (!found) return <Frame isTab><Awaited trouble={trouble} /></Frame>;
  const isChosen = ({try_number: number}: TrySummary) => Number(String(number) === chosen);
  const jobs = [...found.jobs].sort((one, other) => isChosen(other) - isChosen(one));
  const indexes = new Set(found.jobs.map((job) => job.map_index));
  return (
    <Frame isTab>
      <Trouble text={trouble} />
      {found.jobs.length ? null : <Muted>Lading has no record of this task: it was not run by Lading, or its records have been purged (job_retention_days).</Muted>}
      {indexes.size > 1
        ? <Section title="Mapped instances" more={<Row>{found.after === null ? null : <Muted>the newest {count(found.jobs.length)}</Muted>}<Link to={pagePath({view: "jobs", dag: dagId, run: runId, task: taskId})}>All jobs of this task, with reasons</Link></Row>}><TryTable name="Tries" jobs={found.jobs} now={now} empty="" load={() => allJobs(path, parameters)} /></Section>
        : jobs.map((job, index) => (
          <Section key={job.id} title={`Try ${job.try_number}`} more={index || jobs.length < 2 ? null : <Tries jobs={jobs} shown={job} choose={(number) => choices.set({try_number: String(number)})} />}>
            <Phases job={job} now={now} whole />
            <div style={{marginTop: 12}}><Facts job={job} now={now} more={start(job, now)} /></div>
          </Section>
        ))}
    </Frame>
  );
}
