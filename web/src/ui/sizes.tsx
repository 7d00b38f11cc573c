// Right sizes: what the tasks of a Dag should request, and the line to paste.
import * as React from "react";
import {useEffect} from "react";
import type {Advice, Saving, Savings, Size, TaskAdvice} from "../api_types";
import {cost, count, duration, memory, usd} from "../format";
import {useAnswer} from "../polling";
import {AnswerSection, goTo, Line, Muted, Name, Trouble} from "./parts";
import {Table, type Column} from "./table";

type Part = Pick<TaskAdvice, "task_id" | "tries" | "memory" | "cpus" | "time"> & {whole: TaskAdvice | null};

const Below = ({children}: {children: React.ReactNode}) => <div><Muted>{children}</Muted></div>;

export const RIGHT_SIZES = "Right sizes";
/**
 * @param task: the task whose row is marked and scrolled to, once nothing above it will move it
 * @param isSettled: whether what is above the table has been loaded
 */
export function Sizes({dagId, task = null, isSettled = true}: {dagId: string; task?: string | null; isSettled?: boolean}) {
  const asked = useAnswer<Advice>(`dags/${encodeURIComponent(dagId)}/advice`, {}, 60);
  const savings = useAnswer<Savings>("savings", {dag_id: dagId}, 300);
  const isReady = isSettled && asked[0] !== null && (savings[0] ?? savings[1]) !== null;
  useEffect(() => { if (isReady && task !== null) goTo(RIGHT_SIZES, task); }, [isReady, task]);
  return <AnswerSection title={RIGHT_SIZES} asked={asked}>{(found) => <><Trouble text={savings[1]} /><SizeTable found={found} savings={savings[0]} task={task} /></>}</AnswerSection>;
}

/**
 * @param savings: of the Dag; null: not known yet
 */
function SizeTable({found, savings, task: wanted}: {found: Advice; savings: Savings | null; task: string | null}) {
  const saved = new Map<string, Saving>((savings?.tasks ?? []).map((task) => [task.task_id, task]));
  const savedBy = (part: Part) => (part.whole ? saved.get(part.task_id) : undefined);
  const both = (sizes: Size, text: (value: number) => string) => {
    const {most, nearly_all: nearlyAll} = sizes;
    if (nearlyAll === null) return "–";
    const [usual, last] = [text(most ?? nearlyAll), text(nearlyAll)];
    return usual === last ? last : `${usual} / ${last}`;
  };
  // Wraps to two lines in a narrow column.
  const wrapped = (text: string) => <div style={{whiteSpace: "normal"}}>{text.split(" / ").map((part, index, all) => <React.Fragment key={index}><span className="line">{part}{index < all.length - 1 ? " /" : ""}</span> </React.Fragment>)}</div>;
  const what = <Muted>For each resource: the most that 95 % of the tries with enough of it used, and what the next try should request.{savings ? ` As on Cost, these requests would save ${cost(savings.usd, savings.cpu_hours)} and ${count(savings.gib_hours)} GiB-hours a month.` : ""}</Muted>;
  const rows: Part[] = found.tasks.flatMap((task) => [
    {...task, whole: task},
    ...task.by_input.map((part) => ({...part, task_id: `${task.task_id}, inputs up to ${memory(part.bytes / 2 ** 20)}`, whole: null})),
  ]);
  const line = (task: TaskAdvice | null) =>
    task === null ? null : task.line ? <Line text={task.line} name={task.task_id} /> : <Muted>available after {found.fewest} tries</Muted>;
  const ofWhole = (value: (task: TaskAdvice) => unknown) => ({whole}: Part) => (whole ? value(whole) : "");
  /** What was needed and, below it, what was requested; the CSV has a column for each. */
  const needed = (name: string, unit: string, text: (value: number | null) => string, of: (part: Part) => Size, asked?: (task: TaskAdvice) => number | null): Column<Part>[] => [
    {title: `${name} needed`, csvTitle: `${name} of 95 % of tries with enough${unit}`, head: name, cell: (part) => <div>{wrapped(both(of(part), text))}{part.whole && asked ? <Below>requested {text(asked(part.whole))}</Below> : null}</div>, text: (part) => of(part).most, number: true},
    {title: `${name} to request${unit}`, hidden: true, text: (part) => of(part).nearly_all},
    ...(asked ? [{title: `${name} requested${unit}`, hidden: true, text: ofWhole(asked)}] : []),
  ];
  const columns: Column<Part>[] = [
    {title: "Task, and the line to paste", cell: (part) => <div><div><Name>{part.task_id}</Name></div>{line(part.whole)}</div>, text: (part) => part.task_id},
    {title: "Tries", cell: (part) => <div style={{whiteSpace: "normal"}}>{count(part.tries)}{part.whole?.short ? <Below><span className="line">{count(part.whole.short)} with</span> too little {part.whole.short_of.join(" or ")}</Below> : null}</div>, text: (part) => part.tries, number: true},
    {title: "Tries with too little", hidden: true, text: ofWhole((task) => task.short)},
    ...needed("cpus", "", count, ({cpus}) => cpus, ({cpus_asked: asked}) => asked),
    ...needed("Memory", ", MiB", memory, (part) => part.memory, ({memory_asked: asked}) => asked),
    ...needed("Time", ", s", duration, ({time}) => time),
    {title: "Started within", csvTitle: "Started within, s", help: "For 95 % of its tries", cell: ({whole}) => (whole ? duration(whole.waited) : ""), text: ofWhole((task) => task.waited), number: true},
    {title: "Saves a month", help: "What the line saves, at the number of tries of the last 30 days, as on Cost", has: savedBy, cell: (part) => { const its = savedBy(part); return its ? <div>{its.usd === null ? null : usd(its.usd)}<Below>{count(its.cpu_hours)} cpu-h</Below><Below>{count(its.gib_hours)} GiB-h</Below></div> : ""; }, text: false, number: true},
    {title: "Wasted, last tries", help: "GiB-hours that the last tries requested but did not use, plus everything requested by tries that ran out of memory", has: (part) => part.whole?.wasted != null, cell: ({whole}) => (whole?.wasted == null ? "" : <div>{count(whole.wasted)} GiB-h<Below>{count(whole.wasted_by_line)} with the line</Below></div>), text: false, number: true},
    {title: "GiB-hours wasted", hidden: true, text: ofWhole((task) => task.wasted)},
    {title: "GiB-hours wasted with the line", hidden: true, text: ofWhole((task) => task.wasted_by_line)},
    {title: "USD saved a month", hidden: true, text: (part) => savedBy(part)?.usd},
    {title: "cpu-hours saved a month", hidden: true, text: (part) => savedBy(part)?.cpu_hours},
    {title: "GiB-hours saved a month", hidden: true, text: (part) => savedBy(part)?.gib_hours},
    {title: "To paste", hidden: true, text: ({whole}) => whole?.line ?? ""},
  ];
  return <><p>{what}</p><Table name={RIGHT_SIZES} rows={rows} columns={columns} empty="No try has finished." wanted={wanted} keyOf={({task_id}) => task_id} /></>;
}
