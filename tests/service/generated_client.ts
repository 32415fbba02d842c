// Compiled against the types that openapi-typescript generated: see .ci/full.
import createClient from "openapi-fetch";
import type { paths, components } from "./batchfit.js";

const client = createClient<paths>({ baseUrl: "http://127.0.0.1:8080" });

export async function microBatch(): Promise<number> {
  const body: components["schemas"]["Request"] = { model: { preset: "resnet18" }, device: "sim:h200" };
  const { data, error } = await client.POST("/v1/fits", { body, params: { header: { Prefer: "wait=30" } } });
  if (error) throw new Error(error.detail);
  return data.result?.recommendation.micro_batch ?? 0;
}
