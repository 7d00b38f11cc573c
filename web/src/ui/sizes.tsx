// Right sizes: what the tasks of a Dag could ask for, and the line to paste.
import * as React from "react";
import type {Advice, Size, TaskAdvice} from "../api_types";
import {count, duration, memory} from "../format";
import {useAnswer} from "../polling";
import {Awaited, Muted, Name, Section} from "./parts";
import {Table, type Column} from "./table";

type Part = Pick<TaskAdvice, "task_id" | "tries" | "memory" | "cpus" | "time"> & {whole: TaskAdvice | null};

export function Sizes({dagId}: {dagId: string}) {
  const [found, trouble] = useAnswer<Advice>(`dags/${encodeURIComponent(dagId)}/advice`, {}, 60);
  if (!found) return <Awaited trouble={trouble} />;
  const both = (sizes: Size, text: (value: number) => string) => {
    const {most, nearly_all: nearlyAll} = sizes;
    if (nearlyAll === null) return "–";
    return most === nearlyAll || most === null ? text(nearlyAll) : `${text(most)} / ${text(nearlyAll)}`;
  };
  const sum = (name: "saved_cpu_hours" | "saved_gib_hours") => count(found.tasks.reduce((all, task) => all + task[name], 0));
  const more = <Muted>Needed: what 95 / 99 of 100 tries needed, and a fifth more of memory and time. It would have saved {sum("saved_cpu_hours")} cpu-hours and {sum("saved_gib_hours")} GiB-hours.</Muted>;
  const rows: Part[] = found.tasks.flatMap((task) => [
    {...task, whole: task},
    ...task.by_input.map((part) => ({...part, task_id: `${task.task_id}, inputs below ${memory(part.bytes / 2 ** 20)}`, whole: null})),
  ]);
  const line = (task: TaskAdvice | null) =>
    task === null ? null : task.line ? <code style={{userSelect: "all"}}>{task.line}</code> : <Muted>known from {found.fewest} tries on</Muted>;
  const ofWhole = (text: (task: TaskAdvice) => React.ReactNode) => ({whole}: Part) => (whole ? text(whole) : "");
  const columns: Column<Part>[] = [
    {title: "Task, and the line to paste", cell: (part) => <div><div><Name>{part.task_id}</Name></div>{line(part.whole)}</div>, text: (part) => part.task_id},
    {title: "Tries", cell: (part) => count(part.tries), number: true},
    {title: "Tries with too little", cell: ofWhole((task) => count(task.short)), number: true},
    {title: "cpus asked", cell: ofWhole((task) => count(task.cpus_asked)), number: true},
    {title: "cpus needed", cell: (part) => both(part.cpus, count), number: true},
    {title: "Memory asked", cell: ofWhole((task) => memory(task.memory_asked)), number: true},
    {title: "Memory needed", cell: (part) => both(part.memory, memory), number: true},
    {title: "Time needed", cell: (part) => both(part.time, duration), number: true},
    {title: "95 of 100 began within", cell: ofWhole((task) => duration(task.waited)), number: true},
    {title: "cpu-hours saved", cell: ofWhole((task) => count(task.saved_cpu_hours)), number: true},
    {title: "GiB-hours saved", cell: ofWhole((task) => count(task.saved_gib_hours)), number: true},
    {title: "To paste", hidden: true, text: ({whole}) => whole?.line ?? ""},
  ];
  return <Section title="What should its tasks ask for?" more={more}><Table name="Right sizes" rows={rows} columns={columns} empty="No try has ended." keyOf={({task_id}) => task_id} /></Section>;
}
