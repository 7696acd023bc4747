import uPlot from "uplot";

/** A line that keeps its value until the next point: a worker count has no slope. */
export const stepped: uPlot.Series.PathBuilder = (u, seriesIdx, idx0, idx1) => {
  const build = uPlot.paths.stepped?.({ align: 1 });
  return build ? build(u, seriesIdx, idx0, idx1) : null;
};
