// What groups of jobs have in common, whether they wait or have failed.
import * as React from "react";
import {useState} from "react";
import type {WaitingDag} from "../api_types";
import {count} from "../format";
import {Link, Muted, Name} from "../ui/parts";

const ACTORS: Record<string, string> = {author: "The Dag's author", operator: "The operator"};
/** How the remedy of what needs none begins. */
const NOTHING = "Nothing";
/** What would change it, with who can do that. */
export function byWhom({remedy, actors}: {remedy: string; actors: string[]}): string {
  const who = actors.map((actor) => ACTORS[actor] ?? actor);
  return who.length && !remedy.startsWith(NOTHING) ? `${who.join(", or ").replace(/, or The /g, ", or the ")}: ${remedy}` : remedy;
}

const FEW = 3;
/** Three Dags of a group and how many more there are; each leads to its jobs of this group. */
export function Dags({group, to}: {group: {dags: WaitingDag[]; dags_total: number; hidden: boolean}; to: (dagId: string) => string}) {
  const [whole, setWhole] = useState(false);
  const shown = whole ? group.dags : group.dags.slice(0, FEW), more = group.dags_total - shown.length;
  return (
    <div className="row dags">
      {shown.map(({dag_id, jobs}) => <span key={dag_id}><Link to={to(dag_id)} label={`${dag_id}: ${count(jobs)} jobs of this group`}><Name>{dag_id}</Name></Link> {count(jobs)}</span>)}
      {more > 0 ? <button type="button" className="more" onClick={() => setWhole(true)} disabled={whole}>+ {count(more)}</button> : null}
      {group.hidden ? <Muted>and others</Muted> : null}
    </div>
  );
}
