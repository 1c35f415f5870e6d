"use strict";
(function () {
  var shown = {
    displaylogo: false,
    displayModeBar: "hover",
    responsive: true,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]]
  };
  document.querySelectorAll(".figure").forEach(function (element) {
    var spec = JSON.parse(document.getElementById(element.dataset.spec).textContent);
    Plotly.newPlot(element, spec.data, spec.layout, shown);
  });
  function open() {
    var target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.scrollIntoView();
    }
  }
  window.addEventListener("hashchange", open);
  open();
  document.documentElement.dataset.drawn = document.querySelectorAll(".figure .main-svg").length ? "yes" : "none";
})();
