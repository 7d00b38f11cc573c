// The tile on Airflow's home page.
import * as React from "react";
import {FORBIDDEN} from "../api";
import type {Summary} from "../api_types";
import {count, inUse} from "../format";
import {FailedTile, useToday} from "../pages/now";
import {PAGE, pagePath} from "../paths";
import {useAnswer} from "../polling";
import {AnswerSection, Link, Tile, Tiles} from "../ui/parts";
import {addStyle} from "../ui/style";

export function HomeTile() {
  const asked = useAnswer<Summary>("summary", {}, 10), today = useToday();
  addStyle();
  // Show nothing to users who cannot see the page, nor before the first answer.
  if (!asked[0] && (asked[1] === null || asked[1].includes(FORBIDDEN))) return null;
  return (
    <div className="lading tab" style={{height: "auto", padding: 0, overflow: "visible"}}>
      <AnswerSection title="Lading" more={<Link to={PAGE}>What runs where</Link>} asked={asked}>{(found) => (
        <Tiles>
          <Tile label="Running" value={count(found.running)} to={pagePath({view: "jobs", state: "running"})} />
          <Tile label="Waiting" value={count(found.waiting)} to={pagePath({view: "waits"})} />
          <FailedTile summary={found} />
          <Tile label="cpus requested" value={count(found.cpus_used)} help={inUse(found)} to={pagePath({view: "machines"})} />
          <Tile label="Today" value={today.text} help={today.help} to={pagePath({view: "cost", days: "0"})} />
        </Tiles>
      )}</AnswerSection>
    </div>
  );
}
