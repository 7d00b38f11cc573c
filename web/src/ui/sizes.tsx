// Right sizes: what the tasks of a Dag should request, and the line to paste.
import * as React from "react";
import type {Advice, Size, TaskAdvice} from "../api_types";
import {count, duration, memory} from "../format";
import {useAnswer} from "../polling";
import {AnswerSection, Line, Muted, Name} from "./parts";
import {Table, type Column} from "./table";

type Part = Pick<TaskAdvice, "task_id" | "tries" | "memory" | "cpus" | "time"> & {whole: TaskAdvice | null};

const Below = ({children}: {children: React.ReactNode}) => <div><Muted>{children}</Muted></div>;

export function Sizes({dagId}: {dagId: string}) {
  const asked = useAnswer<Advice>(`dags/${encodeURIComponent(dagId)}/advice`, {}, 60);
  return <AnswerSection title="Right sizes" asked={asked}>{(found) => <SizeTable found={found} />}</AnswerSection>;
}

function SizeTable({found}: {found: Advice}) {
  const both = (sizes: Size, text: (value: number) => string) => {
    const {most, nearly_all: nearlyAll} = sizes;
    if (nearlyAll === null) return "–";
    const [usual, last] = [text(most ?? nearlyAll), text(nearlyAll)];
    return usual === last ? last : `${usual} / ${last}`;
  };
  // Wraps to two lines in a narrow column.
  const wrapped = (text: string) => <div style={{whiteSpace: "normal"}}>{text.split(" / ").map((part, index, all) => <React.Fragment key={index}><span className="line">{part}{index < all.length - 1 ? " /" : ""}</span> </React.Fragment>)}</div>;
  const sum = (name: "saved_cpu_hours" | "saved_gib_hours") => count(found.tasks.reduce((all, task) => all + task[name], 0));
  const what = <Muted>For each resource: what 95 % of the tries needed, and what the next try should request. In the last tries, these requests would have saved {sum("saved_cpu_hours")} cpu-hours and {sum("saved_gib_hours")} GiB-hours.</Muted>;
  const rows: Part[] = found.tasks.flatMap((task) => [
    {...task, whole: task},
    ...task.by_input.map((part) => ({...part, task_id: `${task.task_id}, inputs up to ${memory(part.bytes / 2 ** 20)}`, whole: null})),
  ]);
  const line = (task: TaskAdvice | null) =>
    task === null ? null : task.line ? <Line text={task.line} name={task.task_id} /> : <Muted>available after {found.fewest} tries</Muted>;
  const ofWhole = (value: (task: TaskAdvice) => unknown) => ({whole}: Part) => (whole ? value(whole) : "");
  /** What was needed and, below it, what was requested; the CSV has a column for each. */
  const needed = (name: string, unit: string, text: (value: number | null) => string, of: (part: Part) => Size, asked?: (task: TaskAdvice) => number | null): Column<Part>[] => [
    {title: `${name} needed`, csvTitle: `${name} of 95 % of tries${unit}`, head: name, cell: (part) => <div>{wrapped(both(of(part), text))}{part.whole && asked ? <Below>requested {text(asked(part.whole))}</Below> : null}</div>, text: (part) => of(part).most, number: true},
    {title: `${name} to request${unit}`, hidden: true, text: (part) => of(part).nearly_all},
    ...(asked ? [{title: `${name} requested${unit}`, hidden: true, text: ofWhole(asked)}] : []),
  ];
  const columns: Column<Part>[] = [
    {title: "Task, and the line to paste", cell: (part) => <div><div><Name>{part.task_id}</Name></div>{line(part.whole)}</div>, text: (part) => part.task_id},
    {title: "Tries", cell: (part) => <div style={{whiteSpace: "normal"}}>{count(part.tries)}{part.whole?.short ? <Below><span className="line">{count(part.whole.short)} with</span> too little</Below> : null}</div>, text: (part) => part.tries, number: true},
    {title: "Tries with too little", hidden: true, text: ofWhole((task) => task.short)},
    ...needed("cpus", "", count, ({cpus}) => cpus, ({cpus_asked: asked}) => asked),
    ...needed("Memory", ", MiB", memory, (part) => part.memory, ({memory_asked: asked}) => asked),
    ...needed("Time", ", s", duration, ({time}) => time),
    {title: "Started within", csvTitle: "Started within, s", help: "For 95 % of its tries", cell: ({whole}) => (whole ? duration(whole.waited) : ""), text: ofWhole((task) => task.waited), number: true},
    {title: "Saves", cell: ({whole}) => (whole ? <div>{count(whole.saved_cpu_hours)} cpu-h<Below>{count(whole.saved_gib_hours)} GiB-h</Below></div> : ""), text: false, number: true},
    {title: "Wasted", help: "GiB-hours that the last tries requested but did not use, plus everything requested by tries that ran out of memory", has: (part) => part.whole?.wasted != null, cell: ({whole}) => (whole?.wasted == null ? "" : <div>{count(whole.wasted)} GiB-h<Below>{count(whole.wasted_by_line)} with the line</Below></div>), text: false, number: true},
    {title: "GiB-hours wasted", hidden: true, text: ofWhole((task) => task.wasted)},
    {title: "GiB-hours wasted with the line", hidden: true, text: ofWhole((task) => task.wasted_by_line)},
    {title: "cpu-hours saved", hidden: true, text: ofWhole((task) => task.saved_cpu_hours)},
    {title: "GiB-hours saved", hidden: true, text: ofWhole((task) => task.saved_gib_hours)},
    {title: "To paste", hidden: true, text: ({whole}) => whole?.line ?? ""},
  ];
  return <><p>{what}</p><Table name="Right sizes" rows={rows} columns={columns} empty="No try has finished." keyOf={({task_id}) => task_id} /></>;
}
