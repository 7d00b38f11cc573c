// Parts shared by groups of waiting jobs, groups of failed jobs, and shares.
import * as React from "react";
import {useState} from "react";
import type {WaitingDag} from "../api_types";
import {count} from "../format";
import {Link, Muted, Name} from "../ui/parts";

const FEW = 3;
/** The first Dags of a group, linked to their jobs in it, and the number of further Dags. */
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
