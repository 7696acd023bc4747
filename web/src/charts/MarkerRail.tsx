import { GLYPHS, type Marker, type PlacedMarker } from "./markers";
import { AXIS_PX, PAD_PX } from "./options";

/** The strip above the lanes: a chip for every change of membership, and its line down through all of them. */
export function MarkerRail({ placed }: { placed: PlacedMarker[] }) {
  return (
    <div class="rail" style={{ left: `${AXIS_PX}px`, right: `${PAD_PX}px` }}>
      {placed.map((place) => (
        <MarkerChip key={place.markers[0]?.position} place={place} />
      ))}
    </div>
  );
}

function MarkerChip({ place }: { place: PlacedMarker }) {
  const { markers } = place;
  const worst =
    markers.find((marker) => marker.kind === "failure" || marker.kind === "restart") ?? markers[0];
  if (!worst) return null;
  return (
    <>
      <div
        class={`marker marker-${worst.kind} marker-row-${place.row}`}
        style={{ left: `${place.left}%` }}
        data-kind={worst.kind}
      >
        <button type="button" class="marker-chip" aria-label={markers.map(sentence).join(". ")}>
          <span aria-hidden="true">{markers.length > 1 ? `${markers.length}×` : GLYPHS[worst.kind]}</span>
          {place.hasLabel && worst.pause && <span class="marker-pause">{worst.pause}</span>}
        </button>
        <span class="marker-line" aria-hidden="true" />
      </div>
      <div
        class={`tip tip-row-${place.row}`}
        role="tooltip"
        style={{ left: `clamp(120px, ${place.left}%, calc(100% - 120px))` }}
      >
        {markers.slice(0, 6).map((marker) => (
          <MarkerText key={marker.position} marker={marker} />
        ))}
        {markers.length > 6 && <p>and {markers.length - 6} more: zoom in to tell them apart</p>}
      </div>
    </>
  );
}

function MarkerText({ marker }: { marker: Marker }) {
  return (
    <div class="tip-part">
      <strong>
        {GLYPHS[marker.kind]} {marker.title}
      </strong>
      {marker.details.map((detail) => (
        <span key={detail}>{detail}</span>
      ))}
    </div>
  );
}

function sentence(marker: Marker): string {
  return [marker.title, ...marker.details].join(", ");
}
