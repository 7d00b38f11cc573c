// Why jobs have failed, grouped by cause, with remedies.
import * as React from "react";
import type {FailedTask, FailureGroup, FailureGroups} from "../api_types";
import {ago, byWhom, count, iso, jobsText, sequelLines, sequelText} from "../format";
import {logPath, pagePath, sizePath, taskPath, withinText} from "../paths";
import {useAnswer} from "../polling";
import {AnswerSection, Clamp, Line, Link, Muted, Name, TaskName} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {Dags} from "./groups";

export const DAY = "86400";

const choices = (group: FailureGroup, within: string) => ({view: "jobs", state: "failed", cause: group.cause, site: group.site, location: group.node, within});
const place = ({site, node}: FailureGroup) => [site, node].filter(Boolean).join(" / ");
const advised = (task: FailedTask) => { const its = `${task.dag_id}.${task.task_id}, ${jobsText(task.jobs)}`; return task.advice ? `${task.advice} (${its})` : its; };

/** What has become of the tasks of a group; for a single one, also which try succeeded and when. */
export function sequels({since_then: tasks, failed_tasks: [first]}: Pick<FailureGroup, "since_then" | "failed_tasks">, now: number): string[] {
  const lines = sequelLines(tasks);
  return first?.since_then && Object.values(tasks).reduce((sum, each) => sum + each, 0) === 1 ? [sequelText(first.since_then, now)] : lines;
}

/** A failed task, which leads to its failed try, or to its right size if no try is known. */
export function Task({task}: {task: FailedTask}) {
  const its = `${task.dag_id}.${task.task_id}`, tried = taskPath(task);
  return <Link to={tried ?? sizePath(task.dag_id, task.task_id)} label={tried ? `A failed try of ${its}` : `Right size of ${its}`}><TaskName job={task} /></Link>;
}

function What({group}: {group: FailureGroup}) {
  return (
    <div>
      <Clamp text={byWhom(group)} />
      {group.failed_tasks.map((task) => (
        <div key={`${task.dag_id}.${task.task_id}`}>
          <Muted>{task.advice ? <><Link to={sizePath(task.dag_id, task.task_id)} label={`Right size of ${task.dag_id}.${task.task_id}`}>{task.advice}</Link> (</> : ""}<Task task={task} />, {jobsText(task.jobs)}{task.run_id ? <>, <Link to={logPath(task)} label={`Log of a failed try of ${task.dag_id}.${task.task_id}`}>log</Link></> : null}{task.advice ? ")" : ""}</Muted>
          {task.line ? <Line text={task.line} name={`${task.dag_id}.${task.task_id}`} /> : null}
        </div>
      ))}
    </div>
  );
}

/** @param within: the time range until now, seconds as text */
export function Failures({within, few}: {within: string; few?: number}) {
  const asked = useAnswer<FailureGroups>("failures", {}, 15, () => ({since: Date.now() / 1000 - Number(within)}), within), now = asked[2];
  const columns: Column<FailureGroup>[] = [
    {title: "Cause", cell: (group) => <div><b>{group.title}</b>{place(group) ? <> at <Name>{place(group)}</Name></> : null}<div className="muted">{group.sentences.map((each) => <Clamp key={each} text={each} lines={6} />)}</div></div>, text: (group) => [`${group.title}${place(group) ? ` at ${place(group)}` : ""}`, ...group.sentences].filter(Boolean).join("; ")},
    {title: "Failed tries", cell: (group) => <Link to={pagePath(choices(group, within))} label={`${count(group.jobs)} tries that failed: ${group.title}`}>{count(group.jobs)}</Link>, text: (group) => group.jobs, number: true},
    {title: "Task names", help: "All mapped instances of a task, in all runs, count once", cell: (group) => count(group.tasks), text: (group) => group.tasks, number: true},
    {title: "Since then", help: "What has become of the tasks whose tries failed; each mapped instance and each run counts. Gave up: Airflow does not retry it", cell: (group) => sequels(group, now).map((line) => <div key={line} className="line">{line}</div>), text: (group) => sequelLines(group.since_then).join("; "), has: (group) => sequelLines(group.since_then).length},
    {title: "Last", cell: (group) => ago(now - group.last), text: (group) => iso(group.last), number: true},
    {title: "Dags", cell: (group) => <Dags group={group} to={(dag) => pagePath({...choices(group, within), dag})} />, text: (group) => group.dags.map(({dag_id, jobs}) => `${dag_id} ${jobs}`).join("; ")},
    {title: "What to do", cell: (group) => <What group={group} />, text: (group) => [byWhom(group), ...group.failed_tasks.map(advised)].join("; ")},
  ];
  return (
    <AnswerSection title={`Failures, ${withinText(within)}`} asked={asked} more={<Link to={pagePath({view: "jobs", state: "failed", within})}>All failed jobs</Link>}>{(found) => <>
      <Table name="Failures by cause" rows={found.groups} columns={columns} few={few} empty="Nothing has failed." keyOf={(group) => `${group.title} ${place(group)}`} />
      {found.groups_left_out ? <Muted>{count(found.groups_left_out)} more groups, with {count(found.jobs_left_out)} jobs, are not listed</Muted> : null}
    </>}</AnswerSection>
  );
}
