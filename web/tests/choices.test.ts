import {expect, test} from "vitest";
import {parametersOf, sorted} from "../src/pages/jobs";
import {WAITING} from "../src/ui/tries";
import {pagePath, search, taskName, taskPath} from "../src/paths";

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
