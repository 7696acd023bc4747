import { useEffect, useRef, useState } from "preact/hooks";
import { putPackage } from "../live/api";
import { chooseFiles, type FolderFile, pack } from "../live/pack";
import { formatBytes, plural } from "../text/format";

/** A folder that the service has. */
export interface UploadedFolder {
  sha256: string;
  /** Its name here. */
  title: string;
  /** Names of what is in it, sorted. */
  names: string[];
  unpackedBytes: number;
}

interface FolderPickerProps {
  folder: UploadedFolder | null;
  /** Null: another one is on its way. */
  onFolder: (folder: UploadedFolder | null) => void;
}

/** Choose the folder of a program: it is packed here, and uploaded at once. */
export function FolderPicker({ folder, onFolder }: FolderPickerProps) {
  const input = useRef<HTMLInputElement>(null);
  const [progress, setProgress] = useState("");
  const [problem, setProblem] = useState("");
  const work = useRef<AbortController | null>(null);
  useEffect(() => () => work.current?.abort(), []);
  const take = async (chosen: FileList) => {
    work.current?.abort();
    work.current = new AbortController();
    const { signal } = work.current;
    const title = chosen[0]?.webkitRelativePath.split("/")[0] ?? "";
    onFolder(null);
    setProblem("");
    try {
      const files = await chooseFiles(Array.from(chosen, relative));
      const tell = (done: number) => setProgress(`Packing ${done} of ${plural(files.length, "file")}…`);
      tell(0);
      const { sha256, zip, names, unpackedBytes } = await pack(files, tell, signal);
      setProgress(`Uploading ${formatBytes(zip.size)}…`);
      await putPackage(sha256, zip, signal);
      onFolder({ sha256, title, names, unpackedBytes });
    } catch (error) {
      if (!signal.aborted) setProblem(error instanceof Error ? error.message : String(error));
    } finally {
      if (!signal.aborted) setProgress("");
    }
  };
  const choose = () => {
    if (!input.current) return;
    input.current.value = ""; // else the same folder, changed meanwhile, would be no change
    input.current.click();
  };
  return (
    <div class="folder-picker">
      <button type="button" class="button" onClick={choose}>
        {folder ? "Choose another folder…" : "Choose a folder…"}
      </button>
      <input
        ref={(element) => {
          input.current = element;
          if (element) element.webkitdirectory = true;
        }}
        type="file"
        class="hidden"
        tabIndex={-1}
        aria-label="Folder of the program"
        multiple
        onChange={(event) => {
          const { files } = event.currentTarget;
          if (files && files.length > 0) void take(files);
        }}
      />
      <span role="status">
        {progress ||
          (folder && (
            <>
              <code>{folder.title}</code> is uploaded: {plural(folder.names.length, "file")},{" "}
              {formatBytes(folder.unpackedBytes)}
            </>
          ))}
      </span>
      <p class="error" role="alert">
        {problem}
      </p>
    </div>
  );
}

function relative(file: File): FolderFile {
  return { name: file.webkitRelativePath.split("/").slice(1).join("/"), content: file };
}
