// Scores of search results: Sphinx's own, but a heading with the words as typed comes first. So a
// question finds its answer, and not a longer page in which each of its words occurs.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) =>
    kind === "title" ? 10 * score : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
