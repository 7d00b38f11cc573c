import {expect, test} from "vitest";
import {parametersOf, sortChoices, sorted} from "../src/pages/jobs";
import {tryShown} from "../src/ui/choices";
import {WAITING} from "../src/ui/tries";
import {logPath, pagePath, search, taskName, taskPath} from "../src/paths";

const chosen = (text: string) => { const all = new URLSearchParams(text); return {get: (name: string) => all.get(name), all: (name: string) => all.getAll(name)}; };

test("choices are an address, and an address is choices", () => {
  const path = pagePath({view: "jobs", state: WAITING, dag: "a&b", site: null, q: ""});
  expect(path).toBe("/plugin/lading?view=jobs&state=queued&state=attempted&state=placed&dag=a%26b");
  expect(parametersOf(chosen(path.split("?")[1]))).toMatchObject({state: [...WAITING], dag_id: ["a&b"], site: [], q: null});
  expect(search({})).toBe("");
});

test("what is sorted by is one of the keys of the API", () => {
  expect(sorted(chosen(""))).toEqual({by: "queued", descending: true});
  expect(sorted(chosen("sort=usd&order=asc"))).toEqual({by: "usd", descending: false});
  expect(sorted(chosen("sort=drop+table"))).toEqual({by: "queued", descending: true});
});

test("a task instance has a name and a tab, where the user may see which it is", () => {
  const job = {dag_id: "d", run_id: "manual__1+2", task_id: "t", map_index: 3};
  expect(taskName(job)).toBe("d.t[3]");
  expect(taskPath(job)).toBe("/dags/d/runs/manual__1%2B2/tasks/t/mapped/3/plugin/lading-task");
  expect(taskPath({...job, try_number: 1})).toBe(`${taskPath(job)}?try_number=1`);
  expect(taskName({...job, hidden: true})).toBe("another Dag's task");
  expect(taskPath({...job, dag_id: null})).toBeNull();
});

test("only waiting jobs are sorted by their expected starts", () => {
  const sort = "sort=starts&order=asc";
  expect(sorted(chosen(`${sort}&state=queued&state=placed`))).toEqual({by: "starts", descending: false});
  expect(sorted(chosen(sort)).by, "running jobs as well").toBe("queued");
  expect(sorted(chosen(`${sort}&state=queued&state=running`)).by).toBe("queued");
  expect(sortChoices([], "starts", false)).toEqual({sort: "starts", order: "asc", after: null, state: WAITING});
  expect(sortChoices(["queued"], "starts", true), "what was chosen stays").toEqual({sort: "starts", order: null, after: null});
  expect(sortChoices(["running"], "usd", true)).toEqual({sort: "usd", order: null, after: null});
});

test("the try whose log was seen last is the chosen one", () => {
  const task = {dag_id: "d", run_id: "manual__2026-11-30T08:03:24+00:00", task_id: "t", map_index: 3}, path = logPath(task)!;
  const at = (more: string) => `http://localhost:8080/airflow/dags/d/runs/manual__2026-11-30T08:03:24%2B00:00/tasks/t${more}`, tab = at("/mapped/3/plugin/lading-task");
  expect(tryShown([at("/mapped/3?try_number=1")], path)).toBe("1");
  expect(tryShown([tab, at("/mapped/3/code"), at("/mapped/3/details?try_number=2"), at("/mapped/3?try_number=1")], path)).toBe("2");
  expect(tryShown([tab, at("/mapped/3"), at("/mapped/3?try_number=1")], path), "the log of the newest try").toBeNull();
  for (const other of [at("/mapped/31?try_number=1"), at("?try_number=1"), "http://localhost:8080/plugin/lading"]) expect(tryShown([other, at("/mapped/3?try_number=1")], path), other).toBeNull();
  expect(tryShown([at("/mapped/3?try_number=1")], logPath({...task, map_index: -1})!), "of another instance").toBeNull();
  expect(tryShown([], path)).toBeNull();
});
